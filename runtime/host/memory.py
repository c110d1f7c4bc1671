"""The memory of this machine."""

import os


def total_memory_bytes() -> int:
    """Total physical memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
