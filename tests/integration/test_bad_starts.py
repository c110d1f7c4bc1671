"""Meshes that cannot start: one clear message, an exit code, and nothing left running."""

import json
import shutil
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.errors import LaunchError
from stagemesh.cli.options.common import (
    DEVICE_DEFAULTS,
    LOG_DEFAULTS,
    AddressOptions,
    PlanOptions,
)
from stagemesh.cli.options.launching import MeshOptions, make_launch_plan
from stagemesh.launcher.launcher import local_mesh
from stagemesh.launcher.ports import reserve
from tests.integration.processes import leaving_no_child, run_command, running_command
from tests.integration.separate import separate_mesh
from tests.integration.tiny_chat import TinyChat

pytestmark = [pytest.mark.integration, pytest.mark.independent]

WEIGHTS = "model.safetensors"
TENSOR = "model.layers.3.mlp.up_proj.weight"


@pytest.fixture
def folder(tiny_chat: TinyChat, tmp_path: Path) -> Path:
    """A copy of the model that a test may break."""
    copy = tmp_path / "broken"
    shutil.copytree(tiny_chat.model.folder, copy)
    return copy


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors[TENSOR]
    save_file(tensors, folder / WEIGHTS)


def reshape_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors[TENSOR] = tensors[TENSOR][:-1].contiguous()
    save_file(tensors, folder / WEIGHTS)


def truncate(folder: Path) -> None:
    weights = folder / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1000])


def pickle_only(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def rename_architecture(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "MambaForCausalLM"))


def fail(*arguments: str, code: int = 1) -> str:
    """Runs `stagemesh ARGUMENTS`, which must fail; returns its one error line."""
    with leaving_no_child():
        done = run_command(*arguments)
    assert done.returncode == code, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return errors[0]


FREE = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--mesh", "127.0.0.1:0")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (drop_tensor, TENSOR),
        (reshape_tensor, TENSOR),
        (truncate, WEIGHTS),
        (pickle_only, "convert them to safetensors"),
        (rename_architecture, "LlamaForCausalLM"),
    ],
)
def test_serve_of_a_broken_model_says_what_is_wrong_with_it(
    damage: Callable[[Path], None], expected: str, folder: Path
) -> None:
    damage(folder)
    assert expected in fail("serve", str(folder), "--pp", "2", *FREE)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--layers", "2,2"), "add up to the model's 5"),
        (("--layers", "2,2,2"), "add up to the model's 5"),
        (("--pp", "6"), "use at most 5 stages"),
    ],
)
def test_serve_with_layers_that_do_not_add_up_says_the_numbers(
    options: tuple[str, ...], expected: str, folder: Path
) -> None:
    assert expected in fail("serve", str(folder), *options, *FREE)


@pytest.mark.parametrize("command", ["serve", "coordinator"])
def test_start_with_an_unknown_model_says_what_can_be_given(command: str) -> None:
    message = fail(command, "no-such-folder", *FREE)
    assert "no-such-folder" in message
    assert "give a folder" in message


@pytest.mark.parametrize("command", ["serve", "coordinator"])
@pytest.mark.parametrize("api", ["--grpc", "--http", "--mesh"])
def test_start_on_a_taken_port_says_which(command: str, api: str, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        apis = dict.fromkeys(FREE[::2], "127.0.0.1:0") | {api: address}
        options = [text for pair in apis.items() for text in pair]
        assert f"cannot listen on {address}" in fail(command, str(folder), *options, code=3)


def test_worker_on_a_taken_port_says_which() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        message = fail("worker", "--coordinator", "127.0.0.1:1", "--listen", address, code=3)
        assert f"cannot listen on {address}" in message


async def test_mesh_with_a_worker_that_refuses_says_why(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    tensors = load_file(other / WEIGHTS)
    tensors[TENSOR] += 1
    save_file(tensors, other / WEIGHTS)
    addresses = AddressOptions(grpc="127.0.0.1:0", http="127.0.0.1:0", mesh="127.0.0.1:0")
    mesh_options = MeshOptions(PlanOptions(pp=2), addresses=addresses)
    plan = make_launch_plan(str(folder), mesh_options, DEVICE_DEFAULTS, LOG_DEFAULTS)
    arguments = (*plan.workers.arguments, "--model-path", str(other))
    plan = replace(plan, workers=replace(plan.workers, arguments=arguments))
    with (
        leaving_no_child(),
        pytest.raises(LaunchError, match="put the same model files on every node"),
    ):
        async with local_mesh(plan, print) as mesh:
            await mesh.wait_until_ready(lambda state: None)


def test_worker_that_finds_no_coordinator_says_where_it_looked(folder: Path) -> None:
    """Case 27 (vllm#8447): a closed port is named in seconds, and tried again."""
    nowhere = reserve("127.0.0.1:0")
    with running_command("worker", "--coordinator", nowhere) as worker:
        line = worker.log.wait_for("not_joined", timeout_seconds=20.0)
        assert nowhere in line
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


def remove_index_entry(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    index = {"weight_map": {TENSOR: "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (shutil.rmtree, "there is no such folder or file here"),
        (remove_config, "has no config.json"),
        (remove_index_entry, "model-00001-of-00002.safetensors is missing"),
        (truncate, WEIGHTS),
        (pickle_only, "convert them to safetensors"),
        (rename_architecture, "LlamaForCausalLM"),
    ],
)
def test_worker_with_a_model_path_that_cannot_be_served_refuses_at_its_start(
    damage: Callable[[Path], None], expected: str, folder: Path
) -> None:
    """Case 27: also a spare, which would load nothing before it is needed, and then too late."""
    damage(folder)
    message = fail("worker", "--coordinator", "127.0.0.1:1", "--model-path", str(folder))
    assert str(folder) in message or expected == "LlamaForCausalLM"
    assert expected in message


def test_worker_with_a_model_path_that_is_no_gguf_file_refuses_at_its_start(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"")
    message = fail("worker", "--coordinator", "127.0.0.1:1", "--model-path", str(path))
    assert "it is no GGUF file" in message


def test_worker_with_other_files_is_put_out_and_a_spare_takes_its_place(
    folder: Path, tmp_path: Path
) -> None:
    """A coordinator that comes last meets its workers in any order, and one of them is broken."""
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    tensors = load_file(other / WEIGHTS)
    tensors[TENSOR] += 1
    save_file(tensors, other / WEIGHTS)
    with separate_mesh(str(folder), "--pp", "2", "--kv-memory", "64MiB") as mesh:
        broken = mesh.start_worker("--model-path", str(other))
        good = [mesh.start_worker() for _ in range(2)]
        for worker in (broken, *good):
            worker.log.wait_for("not_joined")
        mesh.start_coordinator()
        state = mesh.until(lambda state: state.ready or bool(state.failure))
    assert state.failure == ""
    used = {id for stage in state.replicas[0].stages for id in stage.worker_ids}
    pids = {worker.pid for worker in state.workers if worker.worker_id in used}
    assert pids == {worker.process.pid for worker in good}
