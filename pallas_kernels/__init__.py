"""Attention over a paged KV pool: `reference` in plain jnp, and the shapes it is tested on."""
