"""The C library's allocator, while weights are read."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # <malloc.h>
LARGE_BYTES = 1 << 20
LARGEST_BYTES = 32 << 20  # where glibc's own adjustment of MMAP_THRESHOLD ends


@contextmanager
def large_buffers_given_back() -> Iterator[None]:
    """Give buffers of a MiB and more back to the system as soon as they are freed.

    glibc keeps freed buffers of up to 32 MiB once it has seen one; so it does again afterwards,
    when the same buffers are needed in every step. Where there is no glibc, nothing is changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        yield
        return
    mallopt(MMAP_THRESHOLD, LARGE_BYTES)
    try:
        yield
    finally:
        mallopt(MMAP_THRESHOLD, LARGEST_BYTES)
        mallopt(TRIM_THRESHOLD, 2 * LARGEST_BYTES)
