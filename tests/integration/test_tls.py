"""A mesh of real processes whose links are mutual TLS and whose APIs have certificates."""

import json
import re
import ssl
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from runtime.rpc.channels import dial_blocking
from runtime.rpc.tls import MeshTls, Role, trusting
from stagemesh import Client, GenerationRequest, MeshState, StagemeshRpcError, TokenIds
from stagemesh.certificates import NodeRequest, make_certificates
from tests.conftest import MESH_OPTIONS
from tests.integration.processes import Mesh, run_command, serving, until
from tests.integration.tiny_chat import TinyChat

pytestmark = pytest.mark.integration

PROMPT = (5, 6, 7)
REQUEST = GenerationRequest(prompts=(TokenIds(PROMPT),), max_tokens=12, ignore_eos=True)


def make_node(folder: Path, node: str, *roles: Role) -> Path:
    request = NodeRequest(node, roles, ("127.0.0.1",), timedelta(days=1))
    make_certificates(folder, request, is_renewal=False)
    return folder / node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates for every role."""
    return make_node(tmp_path_factory.mktemp("certificates"), "local", *Role)


@pytest.fixture(scope="module")
def mesh(node: Path, tiny_chat: TinyChat) -> Iterator[Mesh]:
    """Two stages; neither its links nor its APIs speak anything but TLS."""
    api = ("--api-tls-cert", str(node / "coordinator.pem"))
    key = ("--api-tls-key", str(node / "coordinator.key"))
    folder = str(tiny_chat.model.folder)
    with serving(folder, "--pp", "2", "--tls-dir", str(node), *api, *key, *MESH_OPTIONS) as running:
        yield running
        running.stop()


def test_mesh_under_tls_gives_the_same_tokens_also_after_a_workers_death(
    mesh: Mesh, node: Path, tiny_chat: TinyChat
) -> None:
    with Client(mesh.target, tls=trusting(node / "ca.pem")) as client:
        updates = client.infer(REQUEST, timeout_seconds=60)
        first = next(updates)
        psutil.Process(client.state().workers[0].pid).kill()
        tokens = tuple(token.id for update in (first, *updates) for token in update.tokens)
        until(client, lambda state: state.ready and len(state.replicas[0].stages) == 2)
    assert tokens == tiny_chat.greedy(PROMPT, 12)


def test_http_api_speaks_https_with_the_same_certificate(mesh: Mesh, node: Path) -> None:
    context = ssl.create_default_context(cafile=str(node / "ca.pem"))
    body = json.dumps({"model": "tiny-chat", "prompt": list(PROMPT), "max_tokens": 2}).encode()
    request = urllib.request.Request(
        f"https://{mesh.http}/v1/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30, context=context) as response:
        assert json.load(response)["usage"]["completion_tokens"] == 2


def test_commands_ask_apis_with_an_authority_and_the_mesh_with_a_certificate(
    mesh: Mesh, node: Path, tmp_path: Path
) -> None:
    worker = _state(mesh, node).workers[0].address
    authority, folder = ("--tls-ca", str(node / "ca.pem")), ("--tls-dir", str(node))
    answer = run_command("infer", "hi", "--target", mesh.target, "--max-tokens", "2", *authority)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert run_command("status", "--target", mesh.target, *authority).returncode == 0
    assert run_command("health", "--ready", worker, *folder).returncode == 0
    # What is of no use: no certificate, one of another mesh, and the wrong way to ask.
    other = make_node(tmp_path, "local", *Role)
    for useless in ((), ("--tls-dir", str(other)), authority):
        refused = run_command("health", worker, *useless)
        assert refused.returncode == 1
        assert re.search("does not answer|hangs up at once", refused.stderr)


def test_worker_lets_its_coordinator_alone_change_what_it_does(mesh: Mesh, node: Path) -> None:
    worker = _state(mesh, node).workers[0].address
    epoch = _state(mesh, node).replicas[0].epoch
    for role in (Role.WORKER, Role.CLIENT):
        tls = MeshTls.open(node, role).credentials_for(Role.WORKER)
        with dial_blocking(worker, tls) as channel:
            unload: Any = channel.unary_unary("/stagemesh.v1.Stage/Unload")
            with pytest.raises(grpc.RpcError) as caught:
                unload(b"", timeout=10)
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert _state(mesh, node).replicas[0].epoch == epoch


def test_worker_of_another_mesh_is_not_let_in(mesh: Mesh, node: Path, tmp_path: Path) -> None:
    other = make_node(tmp_path, "stranger", Role.WORKER)
    mesh_address = _mesh_address(mesh)
    tls = MeshTls.open(other, Role.WORKER).credentials_for(Role.COORDINATOR)
    with (
        Client(mesh_address, tls=tls) as client,
        pytest.raises(StagemeshRpcError, match="no mesh answers"),
    ):
        client.state()
    with Client(
        mesh_address, tls=MeshTls.of_any_role(node).credentials_for(Role.COORDINATOR)
    ) as client:
        assert client.state().ready


def _state(mesh: Mesh, node: Path) -> MeshState:
    with Client(mesh.target, tls=trusting(node / "ca.pem")) as client:
        return client.state()


def _mesh_address(mesh: Mesh) -> str:
    """From the command line of a worker."""
    (line, *_) = [
        child.cmdline() for child in mesh.command.descendants() if "worker" in child.cmdline()
    ]
    return line[line.index("--coordinator") + 1]


@pytest.mark.parametrize("command", ["coordinator", "worker"])
def test_process_that_others_could_reach_without_tls_says_what_to_do(
    command: str, tiny_chat: TinyChat
) -> None:
    # llama.cpp#25289, CVE-2025-47277, vllm#29565: open to the network without a word.
    arguments = {
        "coordinator": (str(tiny_chat.model.folder), "--mesh", "0.0.0.0:0"),
        "worker": ("--coordinator", "127.0.0.1:1", "--listen", "0.0.0.0:0"),
    }
    refused = run_command(command, *arguments[command])
    assert refused.returncode == 1
    assert "--tls-dir" in refused.stderr
    assert "--insecure-mesh" in refused.stderr
