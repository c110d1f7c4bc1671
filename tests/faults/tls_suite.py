"""What a mesh with mutual TLS notices and refuses: flipped bits, and certificates of no worth.

`make test-faults` runs it; its name keeps it out of other runs, because it takes minutes.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtime.rpc.channels import ChannelTls, dial_blocking
from runtime.rpc.tls import MeshTls, Role
from stagemesh.certificates import NodeRequest, make_certificates
from stagemesh.faults.fault_proxy import Faults, OneShotFault
from tests.faults.asking import REQUESTS, asking, disturbed
from tests.faults.cluster import Cluster, Layout, Place, cluster_of, kept_whole
from tests.faults.garbage import throw_garbage
from tests.faults.links import DATA_LINKS, JOIN_LINKS, inject_faults
from tests.integration.processes import run_command, running_command
from tests.integration.tiny_chat import TinyChat

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

LINKS = {
    **{name: (2000, find) for name, find in DATA_LINKS.items()},
    **{name: (1, find) for name, find in JOIN_LINKS.items()},
}


def make_node(folder: Path, lifetime: timedelta = timedelta(days=1), name: str = "local") -> Path:
    """Certificates for every role, of the authority in `folder`, which is made if need be."""
    request = NodeRequest(name, tuple(Role), ("127.0.0.1",), lifetime)
    make_certificates(folder, request, is_renewal=False)
    return folder / name


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mesh's own."""
    return make_node(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another mesh's."""
    return make_node(tmp_path_factory.mktemp("foreign"))


@pytest.fixture(scope="module")
def expired(node: Path) -> Path:
    """Of the mesh's own authority, and over."""
    return make_node(node.parent, -timedelta(minutes=1), "expired")


@pytest.fixture(scope="module")
def shared_secure(node: Path, tiny_chat: TinyChat) -> Iterator[Cluster]:
    """A mesh whose links are mutual TLS."""
    layout = Layout(security=("--tls-dir", str(node)))
    with cluster_of(str(tiny_chat.model.folder), layout) as cluster:
        yield cluster


@pytest.fixture
def secure(shared_secure: Cluster) -> Iterator[Cluster]:
    """Whole before the test; nothing is held in it after."""
    with kept_whole(shared_secure):
        yield shared_secure


@pytest.mark.parametrize("accident", [OneShotFault.CORRUPT, OneShotFault.DUPLICATE])
@pytest.mark.parametrize("link", LINKS)
def test_changed_bytes_are_noticed_and_cost_no_token(
    link: str, accident: OneShotFault, secure: Cluster
) -> None:
    num_bytes, find = LINKS[link]
    proxy = find(secure)
    disturbed(secure, lambda: inject_faults(proxy, Faults(one_shots=((num_bytes, accident),))))


def test_garbage_on_every_port_under_tls_changes_nothing(secure: Cluster) -> None:
    throw_garbage(secure)


def shown(folder: Path, role: Role, authority: Path, to: Role) -> ChannelTls:
    """A stranger's, that trusts the mesh's authority and shows a certificate of `folder`."""
    credentials = grpc.ssl_channel_credentials(
        (authority / "ca.pem").read_bytes(),
        (folder / f"{role}.key").read_bytes(),
        (folder / f"{role}.pem").read_bytes(),
    )
    return ChannelTls(credentials, to.server_name)


@pytest.mark.parametrize("worthless", ["foreign", "expired"])
def test_caller_with_a_worthless_certificate_is_heard_at_no_port(
    worthless: str, node: Path, secure: Cluster, request: pytest.FixtureRequest
) -> None:
    # Case 25 (llama.cpp#25289, vllm#29565): any client that reached the port could call all.
    folder: Path = request.getfixturevalue(worthless)
    epoch = secure.epoch()
    apis = {
        secure.mesh_address: (Role.WORKER, Role.COORDINATOR, "Operations/GetState"),
        secure.worker_at(Place(0)).address: (Role.COORDINATOR, Role.WORKER, "Stage/Unload"),
        secure.worker_at(Place(1)).address: (Role.COORDINATOR, Role.WORKER, "Stage/Unload"),
    }
    with asking(secure, *REQUESTS):
        for address, (role, to, method) in apis.items():
            with dial_blocking(address, shown(folder, role, node, to)) as channel:
                call: Any = channel.unary_unary(f"/stagemesh.v1.{method}")
                with pytest.raises(grpc.RpcError) as caught:
                    call(b"", timeout=10)
            assert isinstance(caught.value, grpc.Call)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert secure.epoch() == epoch


def test_worker_with_a_foreign_certificate_stays_out_and_says_why(
    foreign: Path, secure: Cluster
) -> None:
    pids = {worker.pid for worker in secure.workers}
    options = ("--coordinator", secure.mesh_address, "--tls-dir", str(foreign))
    with running_command("worker", *options) as stranger:
        line = stranger.log.wait_for("not_joined")
        assert "certificate" in line.lower() or "tls" in line.lower()
        with asking(secure, *REQUESTS):
            pass
        assert {worker.pid for worker in secure.ready_state().workers} == pids


def test_worker_with_an_expired_certificate_does_not_start(expired: Path, secure: Cluster) -> None:
    options = ("--coordinator", secure.mesh_address, "--tls-dir", str(expired))
    refused = run_command("worker", *options)
    assert refused.returncode == 1
    assert "it expired at" in refused.stderr
    with asking(secure, *REQUESTS[:2]):
        pass


def test_caller_with_the_certificate_of_the_mesh_is_heard(node: Path, secure: Cluster) -> None:
    # So that the refusals above are for the certificates alone.
    tls = MeshTls.open(node, Role.COORDINATOR).credentials_for(Role.WORKER)
    with dial_blocking(secure.worker_at(Place(0)).address, tls) as channel:
        status: Any = channel.unary_unary("/stagemesh.v1.Stage/Status")
        assert status(b"", timeout=10)
