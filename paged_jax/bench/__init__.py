"""Measurements: what programs compile to on a GPU that is not there, and how fast they run on one
that is. A program of its own (`python -m paged_jax.bench --help`); nothing imports it.
"""
