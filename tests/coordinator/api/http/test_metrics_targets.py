"""The route /sd, Prometheus' HTTP discovery of the workers."""

from pathlib import Path

from coordinator.api.http.utility_routes import target_groups
from coordinator.membership.membership import Membership
from coordinator.membership.worker_record import WorkerIdentity
from runtime.version import PROTOCOL_VERSION
from tests.coordinator.toy_mesh import toy_mesh


def identity(name: str, port: int, metrics_address: str) -> WorkerIdentity:
    return WorkerIdentity(
        protocol_version=PROTOCOL_VERSION,
        build="test",
        worker_id=name,
        node="here",
        address=f"10.0.0.1:{port}",
        device_kind="cpu",
        device_name="a CPU",
        memory_bytes=1,
        pid=1,
        metrics_address=metrics_address,
    )


async def test_sd_lists_the_workers_whose_metrics_can_be_reached(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, num_workers=0) as mesh, mesh.http() as client:
        assert (await client.get("/sd")).json() == []
    membership = Membership(max_workers=2)
    membership.join(identity("a", 1, "10.0.0.1:9101"))
    membership.join(identity("b", 2, ""))
    assert target_groups(membership.workers) == [
        {
            "targets": ["10.0.0.1:9101"],
            "labels": {"worker": "10.0.0.1:1", "node": "here", "device": "cpu"},
        }
    ]
