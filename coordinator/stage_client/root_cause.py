"""Owns what the end of an epoch is blamed on: the culprit's own word, not an echo of it.

One failure ends every stream of an epoch, and the echoes may come first. Whoever hears an echo
waits a moment, in which the culprit's error ends the wait.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Never

from runtime.errors import EpochEndedError, LinkBrokenError, StagemeshError, find_errors
from runtime.host.tasks import run_in_child_task

GRACE_SECONDS: Final = 0.25
# Causes that say no more than: the other side is gone.
_SECONDARY_CAUSES: Final = frozenset(
    {
        "cancelled",
        "closed",
        "collective",
        "collective_timeout",
        "epoch_ended",
        "next_stage",
        "no_epoch",
        "results_gone",
        "sender_gone",
        "stream_closed",
        "unavailable",
    }
)


async def raise_after_grace(error: StagemeshError) -> Never:
    """Raises `error`, an echo only after a moment."""
    if is_secondary(error):
        await asyncio.sleep(GRACE_SECONDS)
    raise error


async def run_to_failure(epoch: Coroutine[Any, Any, None]) -> StagemeshError:
    """Runs an epoch to its end, which is always an error, and returns the one to blame."""
    try:
        await run_in_child_task(epoch)
    except Exception as error:
        causes = list(find_errors(error))
        if not causes:
            raise
        return next((cause for cause in causes if not is_secondary(cause)), causes[0])
    raise AssertionError("an epoch ends with an error only")


def is_secondary(error: StagemeshError) -> bool:
    """Whether it says no more than that somebody else is gone."""
    # A worker that reaches another no more may say so before the other is known to be gone.
    if isinstance(error, LinkBrokenError):
        return True
    return isinstance(error, EpochEndedError) and error.cause in _SECONDARY_CAUSES
