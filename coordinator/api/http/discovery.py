"""Owns `/sd`: where Prometheus finds the workers' metrics, in its HTTP discovery format."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from coordinator.membership.membership import Membership
from coordinator.membership.worker_record import WorkerRecord


class Discovery:
    """The joined workers as targets; one without a reachable address is left out."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    async def targets(self, request: Request) -> Response:
        """One target group for each worker."""
        workers = self._membership.workers
        return JSONResponse([_group(each) for each in workers if each.identity.metrics_address])


def _group(worker: WorkerRecord) -> dict[str, object]:
    identity = worker.identity
    labels = {"worker": identity.address, "node": identity.node, "device": identity.device_kind}
    return {"targets": [identity.metrics_address], "labels": labels}
