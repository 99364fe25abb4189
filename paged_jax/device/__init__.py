"""The device side: pure functions on arrays and pytrees."""
