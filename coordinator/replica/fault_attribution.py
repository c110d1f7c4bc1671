"""Owns what the end of an epoch is held against: workers, the link between two, or nobody.

What is held against whom is remembered by `membership.py`, and heeded by `places.py`.
"""

from collections.abc import Sequence
from typing import Final

from coordinator.membership.membership import Membership
from coordinator.membership.worker_record import WorkerRecord
from coordinator.stage_client.root_cause import is_secondary
from runtime.errors import (
    LinkBrokenError,
    StageFailedError,
    StagemeshError,
    WorkerDiedError,
    WorkerFailedError,
    WorkerRefusedError,
)
from runtime.host.logs import get_logger

_log = get_logger()

_NAMES_WORKER: Final = (WorkerDiedError, WorkerFailedError, WorkerRefusedError)


def attribute(
    cause: StagemeshError,
    workers: Sequence[WorkerRecord],
    membership: Membership,
    now: float,
    *,
    was_serving: bool,
) -> list[WorkerRecord]:
    """Holds an end that was not planned against whom it speaks; who is guilty by now.

    While requests run, a stage's failure may be a request's fault, so it is only noted. A link that
    broke then is tried again: most come back by themselves.
    """
    if was_serving and isinstance(cause, StageFailedError) and not is_secondary(cause):
        failed = [worker for worker in workers if worker.name in cause.workers]
        membership.fault_scores.record_failure(failed, now)
        for worker in failed:
            if worker.is_deprioritized:
                _log.warning("worker_gives_way", worker=worker.name, cause=str(cause))
    if isinstance(cause, LinkBrokenError):
        if was_serving:
            return []
        by_name = {worker.name: worker.identity.worker_id for worker in workers}
        membership.fault_scores.record_link_fault((by_name[cause.worker], by_name[cause.peer]), now)
    return membership.fault_scores.blame(_suspects(cause, workers, was_serving=was_serving), now)


def _suspects(
    cause: StagemeshError, workers: Sequence[WorkerRecord], *, was_serving: bool
) -> Sequence[WorkerRecord]:
    """One of these is to blame, or nobody.

    Those that the cause names. Where it names nobody, and the epoch did not come to serve, those
    that never have, else all of them; while requests run, it may be a request's fault. A stage that
    fails may have been sent nonsense, or fail by itself although it has served: its ranks are among
    the suspects.
    """
    if isinstance(cause, _NAMES_WORKER):
        return [worker for worker in workers if worker.name == cause.worker]
    if isinstance(cause, LinkBrokenError):
        return [worker for worker in workers if worker.name in (cause.worker, cause.peer)]
    if was_serving:
        return []
    failed = (
        cause.workers if isinstance(cause, StageFailedError) and not is_secondary(cause) else ()
    )
    return [each for each in workers if not each.has_served or each.name in failed] or workers
