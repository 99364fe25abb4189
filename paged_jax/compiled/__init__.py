"""The step as pure functions, and the programs that are compiled from them ahead of time."""
