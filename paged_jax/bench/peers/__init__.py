"""Runners of other engines. Each is a script for that engine's own environment and imports nothing
of paged_jax; `wire.py` lies beside them.
"""
