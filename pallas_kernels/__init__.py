"""Kernels of the engine and their definitions in plain jnp; `README.md` says what each one does."""
