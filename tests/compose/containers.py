"""The Docker engine: the image under test, and Compose projects that are removed at the end.

The image is built from `deploy/Dockerfile`. What a machine with little network needs for that is
taken from where pip finds it, PIP_CERT and PIP_FIND_LINKS, and PYTHON_IMAGE names a base image.
"""

import contextlib
import functools
import http.server
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stagemesh import Client, MeshState, StagemeshRpcError
from tests.integration.processes import run_command

ROOT = Path(__file__).parents[2]
IMAGE = "stagemesh:test"
# Constant, because it is a build argument and so a key of the build cache.
_WHEELS_PORT = 50999
_BUILD_SECONDS = 1800.0
_COMPOSE_SECONDS = 600.0
_STATE_SECONDS = 180.0


def docker(
    *arguments: str, env: Mapping[str, str] | None = None, timeout_seconds: float = 60.0
) -> str:
    """Returns the output of `docker ARGUMENTS`; fails with all of its output on an error."""
    result = subprocess.run(
        ("docker", *arguments),
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_seconds,
    )
    command = f"docker {' '.join(arguments)}"
    assert result.returncode == 0, f"{command}:\n{result.stdout}{result.stderr}"
    return result.stdout.strip()


def why_no_engine() -> str:
    """The reason why nothing can be tested; empty if an engine with Compose responds."""
    for arguments in (("info",), ("compose", "version")):
        try:
            docker(*arguments)
        except (FileNotFoundError, AssertionError) as error:
            return f"no Docker engine with Compose v2 is at hand: {error}"
    return ""


def build_image() -> None:
    """Builds IMAGE from this tree."""
    arguments = ["build", "--file", "deploy/Dockerfile", "--tag", IMAGE]
    if base := os.environ.get("PYTHON_IMAGE"):
        arguments += ["--build-arg", f"PYTHON_IMAGE={base}"]
    if certificates := os.environ.get("PIP_CERT"):
        arguments += ["--secret", f"id=ca,src={certificates}"]
    with contextlib.ExitStack() as stack:
        wheels = os.environ.get("PIP_FIND_LINKS", "")
        if Path(wheels).is_dir():
            url = stack.enter_context(_served(Path(wheels)))
            arguments += ["--network", "host", "--build-arg", f"PIP_FIND_LINKS={url}"]
            arguments += ["--build-arg", "TORCH_CPU_INDEX="]
        docker(*arguments, ".", timeout_seconds=_BUILD_SECONDS)


def certificates(authority: Path, name: str, role: str) -> Path:
    """A folder for one node from `stagemesh certs`, which the containers' user can read."""
    made = run_command("certs", str(authority), "--node", name, "--role", role)
    assert made.returncode == 0, made.stderr
    folder = authority / name
    # Temporary folders are readable by their owner only; the mount needs read access.
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


@dataclass(frozen=True, slots=True)
class Node:
    """One Compose project, as on one machine of a mesh."""

    name: str
    variables: Mapping[str, str]

    def compose(self, *arguments: str) -> str:
        """Returns the output of `docker compose ARGUMENTS`."""
        return docker(
            "compose", *arguments, env=self.environment(), timeout_seconds=_COMPOSE_SECONDS
        )

    def environment(self) -> dict[str, str]:
        """The environment, without variables that configure another mesh."""
        machine = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("STAGEMESH_", "COMPOSE_"))
        }
        ours = {
            "COMPOSE_PROJECT_NAME": self.name,
            "STAGEMESH_IMAGE": IMAGE,
            "STAGEMESH_HEALTH_INTERVAL": "5s",
        }
        return machine | ours | dict(self.variables)

    def up(self, *options: str) -> None:
        """Starts services that do not run; returns when they are healthy."""
        self.compose("up", "--detach", "--no-build", *options)

    def containers(self) -> list[str]:
        """The ids of its containers, running or not."""
        return self.compose("ps", "--all", "--quiet").split()


@contextlib.contextmanager
def node(name: str, **variables: str) -> Iterator[Node]:
    """Yields a node that is not started; removes all of it at the end."""
    one = Node(name, variables)
    try:
        yield one
    except BaseException:
        print(one.compose("logs", "--no-color", "--tail", "40"))  # noqa: T201
        raise
    finally:
        one.compose("down", "--volumes")
        label = f"label=com.docker.compose.project={name}"
        assert docker("ps", "--all", "--quiet", "--filter", label) == ""


@contextlib.contextmanager
def network(name: str) -> Iterator[str]:
    """A Docker network of that name."""
    docker("network", "create", name)
    try:
        yield name
    finally:
        docker("network", "rm", name)


def wait_for_state(target: str, is_wanted: Callable[[MeshState], bool], what: str) -> MeshState:
    """Polls the mesh's state until it is as wanted; retries if the API does not respond."""
    deadline = time.monotonic() + _STATE_SECONDS
    state = None
    with Client(target) as client:
        while time.monotonic() < deadline:
            with contextlib.suppress(StagemeshRpcError):
                state = client.state()
                if is_wanted(state):
                    return state
    raise AssertionError(f"{target} is not {what}: {state}")


def assert_idle(api: str) -> None:
    """Waits until no request, KV block or slot is held."""
    wait_for_state(
        api,
        lambda state: (
            state.num_running == state.num_waiting == 0
            and all(
                replica.num_kv_blocks_used == replica.num_slots_used == 0
                for replica in state.replicas
            )
        ),
        "idle",
    )


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The URL of a folder, for builds that share this machine's network."""
    handler = functools.partial(_QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", _WHEELS_PORT), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{_WHEELS_PORT}/"
        finally:
            server.shutdown()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass
