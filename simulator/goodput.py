"""Searches the goodput: the highest request rate at which 90% of requests meet both targets."""

from collections.abc import Callable

GOOD_SHARE = 0.9


def search_goodput(
    is_good: Callable[[float], bool], start: float, tolerance: float = 0.04
) -> float:
    """The highest rate that is good, within a relative tolerance; 0 where none from start/256 is.

    Doubles or halves away from `start`, then bisects. Goodness is taken to fall with the rate.
    """
    good, bad = (start, None) if is_good(start) else (None, start)
    while bad is None:
        assert good is not None
        if is_good(2 * good):
            good *= 2
        else:
            bad = 2 * good
    while good is None:
        if bad < start / 256:
            return 0.0
        if is_good(bad / 2):
            good = bad / 2
        else:
            bad /= 2
    while bad / good > 1 + tolerance:
        middle = (good * bad) ** 0.5
        if is_good(middle):
            good = middle
        else:
            bad = middle
    return good
