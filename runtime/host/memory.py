"""Owns how much memory this machine has."""

import os


def total_memory_bytes() -> int:
    """All of it, whoever uses it now."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
