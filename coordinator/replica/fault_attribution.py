"""Attributes the end of an attempt or epoch to workers, to a link, or to nothing.

| cause                            | before serving: suspects        | while serving             |
| -------------------------------- | ------------------------------- | ------------------------- |
| worker died, failed or refused   | the worker                      | suspect: the worker       |
| link broken                      | both ends; the link             | nothing: it may recover   |
| stage failed                     | its ranks, and all workers that | failure of its ranks: a   |
|                                  | never served                    | request may be the cause  |
| other errors, secondary errors   | all workers that never served;  | nothing                   |
|                                  | if there are none, all          |                           |

`FaultScores` keeps what is attributed, and `assign_workers` uses it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.membership.fault_scores import FaultScores, Link
from coordinator.membership.worker_record import WorkerRecord
from coordinator.stage_client.failures import is_secondary
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


@dataclass(frozen=True, slots=True)
class Fault:
    """One of `suspects` failed the attempt; all of `failed`, one stage, failed while serving."""

    suspects: tuple[WorkerRecord, ...] = ()
    failed: tuple[WorkerRecord, ...] = ()
    link: Link | None = None


def find_fault(
    cause: StagemeshError, workers: Sequence[WorkerRecord], *, was_serving: bool
) -> Fault:
    """Looks up the table above for the unplanned end of an attempt with `workers`."""
    if isinstance(cause, WorkerDiedError | WorkerFailedError | WorkerRefusedError):
        return Fault(suspects=_named(workers, cause.worker))
    if isinstance(cause, LinkBrokenError):
        if was_serving:
            return Fault()
        ids = {worker.name: worker.identity.worker_id for worker in workers}
        link = ids[cause.worker], ids[cause.peer]
        return Fault(suspects=_named(workers, cause.worker, cause.peer), link=link)
    failed: tuple[WorkerRecord, ...] = ()
    if isinstance(cause, StageFailedError) and not is_secondary(cause):
        failed = _named(workers, *cause.workers)
    if was_serving:
        return Fault(failed=failed)
    suspects = tuple(each for each in workers if not each.has_served or each in failed)
    return Fault(suspects=suspects or tuple(workers))


def attribute(
    cause: StagemeshError,
    workers: Sequence[WorkerRecord],
    fault_scores: FaultScores,
    now: float,
    *,
    was_serving: bool,
) -> list[WorkerRecord]:
    """Adds the fault to the scores; returns the suspects that are over the fault limit."""
    fault = find_fault(cause, workers, was_serving=was_serving)
    fault_scores.record_failure(fault.failed, now)
    for worker in fault.failed:
        if worker.is_deprioritized:
            _log.warning("worker_deprioritized", worker=worker.name, cause=str(cause))
    if fault.link is not None:
        fault_scores.record_link_fault(fault.link, now)
    return fault_scores.record_fault(fault.suspects, now)


def _named(workers: Sequence[WorkerRecord], *names: str) -> tuple[WorkerRecord, ...]:
    return tuple(worker for worker in workers if worker.name in names)
