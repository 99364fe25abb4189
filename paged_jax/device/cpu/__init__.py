"""Kernels in C++ for CPUs, built on first use and called through jax.ffi; `README.md` says how."""
