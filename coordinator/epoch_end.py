"""Owns what the end of an epoch is blamed on: the culprit's own word, not an echo of it.

One failure ends every stream of an epoch, and the echoes may come first. Whoever hears an echo
waits a moment, in which the culprit's error ends the wait.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Never

from coordinator.membership import Member
from runtime.errors import (
    EpochEndedError,
    LinkBrokenError,
    StagemeshError,
    WorkerDiedError,
    WorkerFailedError,
    WorkerRefusedError,
    find_errors,
)
from runtime.tasks import run_apart

ECHO_SECONDS: Final = 0.25
_NAMES_WORKER = (WorkerDiedError, WorkerFailedError, WorkerRefusedError)
# Causes that say no more than: the other side is gone.
_ECHOES: Final = frozenset(
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


async def raise_end(error: StagemeshError) -> Never:
    """Raises `error`, an echo only after a moment."""
    if _is_echo(error):
        await asyncio.sleep(ECHO_SECONDS)
    raise error


async def end_of(epoch: Coroutine[Any, Any, None]) -> StagemeshError:
    """Runs an epoch to its end, which is always an error, and returns the one to blame."""
    try:
        await run_apart(epoch)
    except Exception as error:
        causes = list(find_errors(error))
        if not causes:
            raise
        return next((cause for cause in causes if not _is_echo(cause)), causes[0])
    raise AssertionError("an epoch ends with an error only")


def suspects_of(
    cause: StagemeshError, members: Sequence[Member], *, was_serving: bool
) -> Sequence[Member]:
    """Whom an end speaks against that was not planned: one of these is to blame, or nobody.

    Those that the cause names. Where it names nobody, and the epoch did not come to serve, those
    that never have, else all of them; while requests run, it may be a request's fault.
    """
    if isinstance(cause, _NAMES_WORKER):
        return [member for member in members if member.name == cause.worker]
    if isinstance(cause, LinkBrokenError):
        return [member for member in members if member.name in (cause.worker, cause.peer)]
    if was_serving:
        return []
    return [member for member in members if not member.has_served] or members


def _is_echo(error: StagemeshError) -> bool:
    # A worker that reaches another no more may say so before the other is known to be gone.
    if isinstance(error, LinkBrokenError):
        return True
    return isinstance(error, EpochEndedError) and error.cause in _ECHOES
