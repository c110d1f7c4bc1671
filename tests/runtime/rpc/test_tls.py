"""Certificates on the mesh's links: accepted and refused peers, and the reasons."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from runtime.errors import CertificateError, InsecureMeshError
from runtime.rpc import peer_authorization
from runtime.rpc.channels import ChannelTls, ServerTls, bind, dial, error_from_rpc, make_server
from runtime.rpc.tls import ApiTls, MeshTls, Role, check_mesh_address, trusting
from stagemesh.certificates import NodeRequest, make_certificates

Context = grpc.aio.ServicerContext[bytes, bytes]
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
METHODS = ("Stage/Load", "Stage/Forward", "Stage/Status", "Mesh/Join", "Operations/GetState", "X/Y")


def make_node(folder: Path, node: str = "n", *roles: Role, lifetime: timedelta = DAY) -> Path:
    request = NodeRequest(node, roles or tuple(Role), ("127.0.0.1",), lifetime)
    make_certificates(folder, request, is_renewal=False)
    return folder / node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A node that plays every role."""
    return make_node(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def listening(tls: ServerTls | None) -> AsyncIterator[str]:
    """A server that answers every method of METHODS, if the caller may ask."""

    async def answer(request: bytes, context: Context) -> bytes:
        return b"well"

    server = make_server(check=peer_authorization.authorize)
    for name in METHODS:
        service, _, method = name.partition("/")
        handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(answer)
        full_name = f"stagemesh.v1.{service}"
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(full_name, {method: handler}),)
        )
    address = await bind(server, "127.0.0.1:0", tls)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


async def ask(address: str, tls: ChannelTls | None, method: str = "X/Y") -> str:
    """`well`, or what ended the call."""
    async with dial(address, tls) as channel:
        call: Any = channel.unary_unary(f"/stagemesh.v1.{method}")
        try:
            return (await call(b"", timeout=10)).decode()  # type: ignore[no-any-return]
        except grpc.aio.AioRpcError as error:
            return error_from_rpc(error)[0]


async def test_each_role_may_call_what_is_its_own_and_nothing_else(node: Path) -> None:
    # Case 25 (llama.cpp#25289, vllm#29565, LightLLM#1413): any client that reached the port
    # could call everything.
    allowed = {}
    async with listening(MeshTls.open(node, Role.WORKER)) as address:
        for role in Role:
            tls = MeshTls.open(node, role).credentials_for(Role.WORKER)
            answers = {method: await ask(address, tls, method) for method in METHODS}
            assert set(answers.values()) <= {"well", "forbidden_peer"}
            allowed[role] = {method for method, answer in answers.items() if answer == "well"}
    assert allowed == {
        Role.COORDINATOR: {*METHODS} - {"Mesh/Join"},
        Role.WORKER: {"Stage/Forward", "Mesh/Join", "X/Y"},
        Role.CLIENT: {"Stage/Status", "Operations/GetState", "X/Y"},
    }


async def test_listener_without_tls_requires_no_role() -> None:
    async with listening(None) as address:
        assert await ask(address, None, "Stage/Load") == "well"


def without_certificate(node: Path) -> ChannelTls:
    authority = (node / "ca.pem").read_bytes()
    return ChannelTls(grpc.ssl_channel_credentials(authority), Role.WORKER.server_name)


def of_another_mesh(node: Path) -> ChannelTls:
    other = make_node(node.parent / "other", "n")
    credentials = grpc.ssl_channel_credentials(
        (node / "ca.pem").read_bytes(),
        (other / "coordinator.key").read_bytes(),
        (other / "coordinator.pem").read_bytes(),
    )
    return ChannelTls(credentials, Role.WORKER.server_name)


def expired(node: Path) -> ChannelTls:
    old = make_node(node.parent, "old", Role.COORDINATOR, lifetime=-MINUTE)
    credentials = grpc.ssl_channel_credentials(
        (old / "ca.pem").read_bytes(),
        (old / "coordinator.key").read_bytes(),
        (old / "coordinator.pem").read_bytes(),
    )
    return ChannelTls(credentials, Role.WORKER.server_name)


@pytest.mark.parametrize("make", [without_certificate, of_another_mesh, expired])
async def test_caller_whose_certificate_is_worth_nothing_is_not_heard(
    make: Callable[[Path], ChannelTls], tmp_path: Path
) -> None:
    node = make_node(tmp_path)
    async with listening(MeshTls.open(node, Role.WORKER)) as address:
        assert await ask(address, make(node)) == "unavailable"
        assert await ask(address, None) == "unavailable"
        good = MeshTls.open(node, Role.COORDINATOR).credentials_for(Role.WORKER)
        assert await ask(address, good) == "well"


async def test_dialling_demands_the_role_that_it_means_to_reach(node: Path) -> None:
    worker = MeshTls.open(node, Role.WORKER)
    async with listening(worker) as address:
        # A worker that answers where the coordinator is expected is not believed.
        assert await ask(address, worker.credentials_for(Role.COORDINATOR)) == "unavailable"
        assert await ask(address, worker.credentials_for(Role.WORKER)) == "well"
        assert await ask(address, worker.credentials_for(None)) == "well"


async def test_renewed_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    node = make_node(tmp_path)
    served, coordinator = (MeshTls.open(node, role) for role in (Role.WORKER, Role.COORDINATOR))
    async with listening(served) as address:
        assert await ask(address, coordinator.credentials_for(Role.WORKER)) == "well"
        for old in (tmp_path / "ca.pem", tmp_path / "ca.key"):
            old.unlink()
        make_certificates(
            tmp_path, NodeRequest("n", tuple(Role), ("127.0.0.1",), DAY), is_renewal=True
        )
        # Both ends are of the new authority now, which knows nothing of the old one.
        assert await ask(address, coordinator.credentials_for(Role.WORKER)) == "well"


async def test_api_certificate_is_accepted_for_its_hosts_by_clients_of_its_authority(
    node: Path, tmp_path: Path
) -> None:
    api = ApiTls.open(node / "coordinator.pem", node / "coordinator.key")
    async with listening(api) as address:
        assert await ask(address, trusting(node / "ca.pem"), "X/Y") == "well"
        other = make_node(tmp_path)
        assert await ask(address, trusting(other / "ca.pem"), "X/Y") == "unavailable"


def test_files_that_cannot_serve_are_named_with_what_to_do(tmp_path: Path) -> None:
    node = make_node(tmp_path, "w", Role.WORKER)
    old = make_node(tmp_path, "old", Role.WORKER, lifetime=-MINUTE)
    with pytest.raises(CertificateError, match=r"client\.pem: No such file.*stagemesh certs"):
        MeshTls.open(node, Role.CLIENT)
    with pytest.raises(CertificateError, match="it expired at"):
        MeshTls.open(old, Role.WORKER)
    for suffix in (".pem", ".key"):
        (node / f"coordinator{suffix}").write_bytes((node / f"worker{suffix}").read_bytes())
    with pytest.raises(CertificateError, match="it is not a coordinator's"):
        MeshTls.open(node, Role.COORDINATOR)
    (node / "worker.key").write_bytes((old / "worker.key").read_bytes())
    with pytest.raises(CertificateError, match="it is not the key of worker"):
        MeshTls.open(node, Role.WORKER)
    (node / "worker.pem").write_text("nonsense")
    with pytest.raises(CertificateError, match="it cannot be read"):
        MeshTls.open(node, Role.WORKER)


def test_address_open_to_others_needs_tls_or_the_word(node: Path) -> None:
    tls = MeshTls.open(node, Role.WORKER)
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1"):
        check_mesh_address(address, "--mesh", None, is_insecure=False)
    for address in ("0.0.0.0:1", "[::]:1", "10.0.0.1:1", "node-a:1"):
        with pytest.raises(InsecureMeshError, match="--tls-dir, or give --insecure-mesh"):
            check_mesh_address(address, "--mesh", None, is_insecure=False)
        check_mesh_address(address, "--mesh", None, is_insecure=True)
        check_mesh_address(address, "--mesh", tls, is_insecure=False)
