"""A Docker engine in a test's hands: the image under test, and Compose projects that end.

The image is built as `deploy/Dockerfile` says. What a machine with little network needs for that is
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
# Always the same, because it becomes an argument of the build, and with it a key of its cache.
_WHEELS_PORT = 50999
_BUILD_SECONDS = 1800.0
_COMPOSE_SECONDS = 600.0
_STATE_SECONDS = 180.0


def docker(
    *arguments: str, env: Mapping[str, str] | None = None, timeout_seconds: float = 60.0
) -> str:
    """What `docker ARGUMENTS` prints; fails with all that it said if it fails."""
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
    """Why nothing can be tested here; empty where an engine with Compose answers."""
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
    # Temporary folders are their owner's alone; a mount needs only what is in it.
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


@dataclass(frozen=True, slots=True)
class Node:
    """One Compose project, as one machine of a mesh would run it."""

    name: str
    variables: Mapping[str, str]

    def compose(self, *arguments: str) -> str:
        """What `docker compose ARGUMENTS` prints."""
        return docker(
            "compose", *arguments, env=self.environment(), timeout_seconds=_COMPOSE_SECONDS
        )

    def environment(self) -> dict[str, str]:
        """Ours and the machine's, without what would configure another mesh."""
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
        """Starts what does not run; `--wait` returns when it is healthy."""
        self.compose("up", "--detach", "--no-build", *options)

    def containers(self) -> list[str]:
        """The ids of its containers, running or not."""
        return self.compose("ps", "--all", "--quiet").split()


@contextlib.contextmanager
def node(name: str, **variables: str) -> Iterator[Node]:
    """A node that is not up yet; at the end nothing of it is left."""
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
    """The mesh's state as soon as it is wanted; an API that does not answer is asked again."""
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
    """No request, KV block or slot is held, at the latest after a moment."""
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
