"""Half a minute of what `make soak` does for ten."""

import pytest

from tests.faults.cluster import Cluster
from tests.faults.soak import soak

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_load_with_deaths_at_random_loses_nothing_and_grows_nothing(cluster: Cluster) -> None:
    report = soak(cluster, seconds=20)
    assert report.num_kills
    assert report.is_good, report
