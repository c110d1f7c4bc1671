"""Every fault of a proxy on every link, and the ports of a mesh, with and without TLS.

`make test-faults` runs it; its name keeps it out of other runs, because it takes minutes.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from runtime.rpc import split_address
from runtime.tls import Role
from stagemesh.certificates import NodeRequest, make_certificates
from stagemesh.fault_proxy import Accident, Faults
from tests.faults.asking import REQUESTS, asking, disturbed
from tests.faults.cluster import Cluster, cluster_of
from tests.integration.tiny_chat import TinyChat

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

STAGES = (0, 1)
LINKS = ("coordinator to stage 0", "stage 0 to stage 1", "stage 1 to coordinator")
FAULTS = {
    "delay": Faults(delay_seconds=0.05),
    "throttle": Faults(bytes_per_second=30_000),
    "stall": Faults(is_stalled=True),
    "drop": Faults(accidents=((2000, Accident.DROP),)),
    "truncate": Faults(accidents=((2000, Accident.TRUNCATE),)),
    "duplicate": Faults(accidents=((2000, Accident.DUPLICATE),)),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("link", LINKS)
def test_bad_link_costs_no_token(link: str, fault: str, cluster: Cluster) -> None:
    first, last = cluster.worker_of(0), cluster.worker_of(1)
    proxies = dict(zip(LINKS, (first.inward, last.inward, last.outward), strict=True))
    disturbed(cluster, lambda: proxies[link].set(FAULTS[fault]))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates for every role."""
    folder = tmp_path_factory.mktemp("certificates")
    request = NodeRequest("local", tuple(Role), ("127.0.0.1",), timedelta(days=1))
    make_certificates(folder, request, is_renewal=False)
    return folder / "local"


@pytest.fixture(scope="module")
def secure(node: Path, tiny_chat: TinyChat) -> Iterator[Cluster]:
    """A mesh whose links are mutual TLS."""
    security = ("--tls-dir", str(node))
    with cluster_of(str(tiny_chat.model.folder), security=security) as cluster:
        yield cluster


class TestUnderTls:
    """What only a link with TLS notices, and what comes to its ports."""

    @pytest.mark.parametrize("accident", [Accident.CORRUPT, Accident.DUPLICATE])
    @pytest.mark.parametrize("stage", STAGES)
    def test_changed_bytes_are_noticed_and_cost_no_token(
        self, accident: Accident, stage: int, secure: Cluster
    ) -> None:
        faults = Faults(accidents=((2000, accident),))
        disturbed(secure, lambda: secure.worker_of(stage).inward.set(faults))
        secure.refill()

    def test_garbage_on_every_port_changes_nothing(self, secure: Cluster) -> None:
        throw_garbage(secure)


def throw_garbage(cluster: Cluster) -> None:
    """At every port that a process of the mesh listens on, with requests in flight."""
    assert cluster.coordinator is not None
    pids = [cluster.coordinator.process.pid, *(worker.pid for worker in cluster.workers)]
    ports = {
        connection.laddr.port
        for pid in pids
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert split_address(cluster.target)[1] in ports
    with asking(cluster, *REQUESTS):
        for port in ports:
            for head in (b"\x16\x03\x01\x02\x00\x01\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""):
                with (
                    socket.create_connection(("127.0.0.1", port)) as connection,
                    suppress(ConnectionError),
                ):
                    connection.sendall(head + os.urandom(5000))


def test_garbage_on_every_port_without_tls_changes_nothing(cluster: Cluster) -> None:
    throw_garbage(cluster)
