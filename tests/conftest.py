"""The meshes that several packages' tests share, and the tests that run in one test process.

A fixture imports what it needs itself: the tests of most packages need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Its plugin imports it at the end of a run, and pytest parses imported modules. In CPython 3.11 a
# garbage collection during the parse raises SystemError (CPython issue 106905), which failed a run
# whose tests had all passed.
import hypothesis  # noqa: F401
import pytest
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.processes import Mesh
    from tests.integration.tiny_chat import TinyChat

# A step of at most 64 tokens cuts longer prompts into chunks.
MESH_OPTIONS = ("--max-step-tokens", "64", "--kv-memory", "64MiB")
# Fixtures that start processes; each is kept by one test process for all tests that use it.
SHARED_MESHES = ("shared_mesh", "shared_pair", "shared_preempting_pair", "shared_cluster")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups the tests for `--dist loadgroup`, tests that start processes first.

    Tests of one shared mesh are a group, and so are the tests of one file; a test marked
    `independent` is in no group. The tests that start processes take longest, so none of them is
    left for the end of a run, when the other test processes have nothing left to do.
    """
    for item in items:
        group = _group_of(item)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: item.get_closest_marker("integration") is None)


def _group_of(item: pytest.Item) -> str:
    """Empty for a test that any test process may run."""
    fixtures = getattr(item, "fixturenames", ())
    shared = [name for name in SHARED_MESHES if name in fixtures]
    if shared:
        return shared[0]
    if item.get_closest_marker("independent"):
        return ""
    return str(item.path.relative_to(item.config.rootpath))


@pytest.fixture(autouse=True)
def default_logging() -> Iterator[None]:
    """Resets the logging that a command of the test has set up.

    It writes to the standard error of that test, which pytest closes; logging in a handler of a
    later test's server would raise.
    """
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> TinyChat:
    """The model that the shared meshes serve."""
    import torch

    from tests.integration.tiny_chat import MODEL_NAME, make_tiny_chat

    torch.set_num_threads(1)
    return make_tiny_chat(tmp_path_factory.mktemp("models") / MODEL_NAME)


@pytest.fixture(scope="session")
def shared_pair(tiny_chat: TinyChat) -> Iterator[Mesh]:
    """A mesh of two stages, kept over the tests that use it."""
    from tests.integration.processes import serving

    with serving(str(tiny_chat.model.folder), "--pp", "2", *MESH_OPTIONS) as mesh:
        yield mesh
        mesh.stop()


@pytest.fixture
def pair(shared_pair: Mesh) -> Iterator[Mesh]:
    """A mesh of two stages, for what does not depend on the split; idle after the test."""
    yield shared_pair
    shared_pair.assert_idle()
