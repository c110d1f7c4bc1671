"""Worker records and memberships without a worker process."""

from collections.abc import Iterable

from coordinator.membership.membership import Membership
from coordinator.membership.worker_record import WorkerIdentity, WorkerRecord
from runtime.version import PROTOCOL_VERSION


def make_identity(worker_id: str, node: str = "here", kind: str = "cpu") -> WorkerIdentity:
    """An identity whose address is `ID:1`."""
    return WorkerIdentity(PROTOCOL_VERSION, "b", worker_id, node, f"{worker_id}:1", kind, "", 0, 1)


def make_worker(worker_id: str, node: str = "here", kind: str = "cpu") -> WorkerRecord:
    """A record that no membership has."""
    return WorkerRecord(make_identity(worker_id, node, kind))


def make_workers(ids: Iterable[str]) -> list[WorkerRecord]:
    """A record for each id, which no membership has."""
    return [make_worker(each) for each in ids]


def make_membership(ids: Iterable[str], max_workers: int = 16) -> Membership:
    """A membership that a worker has joined for each id."""
    membership = Membership(max_workers)
    for each in ids:
        membership.join(make_identity(each))
    return membership
