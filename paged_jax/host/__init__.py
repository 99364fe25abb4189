"""The host side: requests, blocks and the scheduler, in plain Python without jax or numpy."""
