"""A host whose shared memory is full: a mesh with ranks ends with the reason."""

import re
import subprocess

import pytest

from tests.conftest import MESH_OPTIONS
from tests.integration.process_log import START_SECONDS
from tests.integration.processes import COMMAND, leaving_no_child
from tests.integration.tiny_chat import TinyChat

pytestmark = pytest.mark.integration

SHM_BYTES = 1 << 20
# A mount namespace of its own, with a /dev/shm that is too small, for the command after it.
SMALL_SHM = (
    *("unshare", "--map-root-user", "--mount", "sh", "-c"),
    f'mount -t tmpfs -o size={SHM_BYTES} none /dev/shm && exec "$@"',
    "sh",
)


def test_serve_with_ranks_and_no_room_in_shared_memory_ends_naming_what_it_needs(
    tiny_chat: TinyChat,
) -> None:
    if subprocess.run((*SMALL_SHM, "true"), capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody mount in a namespace of their own")
    addresses = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--mesh", "127.0.0.1:0")
    serve = ("serve", str(tiny_chat.model.folder), "--tp", "2", *MESH_OPTIONS, *addresses)
    with leaving_no_child():
        done = subprocess.run(
            (*SMALL_SHM, *COMMAND, *serve),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_SECONDS,
        )
    assert done.returncode == 1, done.stderr
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    found = re.search(r"failed: ([\d,]+) bytes at /dev/shm/.*, ([\d,]+) bytes are free", error)
    assert found is not None, error
    needed, free = (int(number.replace(",", "")) for number in found.groups())
    assert free <= SHM_BYTES < needed
    assert "No space left on device" in error
    assert "make room there (in a container: docker's --shm-size)" in error
