"""The type of the functions that receive the progress of downloads and conversions."""

from collections.abc import Callable

ProgressFn = Callable[[str, int, int], None]
"""Takes the activity, bytes done and total bytes; both numbers are 0 while unknown."""
