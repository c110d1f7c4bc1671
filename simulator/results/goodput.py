"""Searches the goodput: the highest request rate at which 90% of requests meet both targets."""

from collections.abc import Callable

GOOD_SHARE = 0.9


def search_goodput(
    is_good: Callable[[float], bool], start: float, stride: float = 2.0, tolerance: float = 0.04
) -> float:
    """The highest rate that is good, within a relative tolerance, between start/256 and 256*start.

    0 where none of these is good. Strides away from `start`, by a small factor where it is a good
    guess, then bisects. Goodness is taken to fall with the rate.
    """
    good, bad = (start, None) if is_good(start) else (None, start)
    while bad is None:
        assert good is not None
        if good >= 256 * start:
            return good
        if is_good(stride * good):
            good *= stride
        else:
            bad = stride * good
    while good is None:
        if bad < start / 256:
            return 0.0
        if is_good(bad / stride):
            good = bad / stride
        else:
            bad /= stride
    while bad / good > 1 + tolerance:
        middle = (good * bad) ** 0.5
        if is_good(middle):
            good = middle
        else:
            bad = middle
    return good
