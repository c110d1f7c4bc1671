"""Owns what an operator may ask to leave: one worker, by its address or id, or a whole replica."""

from typing import Final

from coordinator.membership.membership import Membership
from coordinator.membership.worker_record import WorkerRecord
from runtime.errors import InvalidRequestError

MAX_GRACE_SECONDS: Final = 86_400.0


def find_workers(target: str, membership: Membership) -> list[WorkerRecord]:
    """The members that `target` names; raises `InvalidRequestError` if there are none."""
    if target.isdecimal():
        found = [worker for worker in membership.workers if str(worker.replica) == target]
    else:
        found = [
            worker
            for worker in membership.workers
            if target in (worker.name, worker.identity.worker_id)
        ]
    if not found:
        problem = f"{target[:100]!r} is no worker's address or id, and no replica that has workers"
        raise InvalidRequestError(field="target", problem=f"{problem}; see stagemesh status")
    return found
