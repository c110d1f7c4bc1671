"""The mesh that the fault tests share."""

from collections.abc import Iterator

import pytest

from tests.faults.cluster import Cluster, cluster_of, kept_whole
from tests.integration.tiny_chat import TinyChat


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
