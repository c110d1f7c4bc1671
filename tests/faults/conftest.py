"""The mesh that the fault tests share, and what is asked of it."""

from collections.abc import Iterator

import pytest
import torch

from tests.faults.cluster import Cluster, cluster_of, kept_whole
from tests.integration.tiny_chat import MODEL_NAME, TinyChat, make_tiny_chat


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> TinyChat:
    """The model that is served."""
    torch.set_num_threads(1)
    return make_tiny_chat(tmp_path_factory.mktemp("models") / MODEL_NAME)


@pytest.fixture(scope="session")
def shared_cluster(tiny_chat: TinyChat) -> Iterator[Cluster]:
    """Two stages and a spare, kept over the tests that use it."""
    with cluster_of(str(tiny_chat.model.folder)) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """Whole before the test; nothing is held in it after."""
    with kept_whole(shared_cluster):
        yield shared_cluster
