"""How memory is taken from the kernel while a stream is recorded."""

from __future__ import annotations

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_KEPT_BYTES = 8 * 1024 * 1024
_MAPPED_BYTES = 4 * 1024 * 1024


def keep_buffers() -> None:
    """Keep the memory of buffers for the next ones.

    The C library would give it back after each, and have the kernel clear new pages for the next.
    Where it is another library than glibc nothing happens.
    """
    import ctypes

    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_MMAP_THRESHOLD, _MAPPED_BYTES)
        tune(_TRIM_THRESHOLD, _KEPT_BYTES)
