"""A minute of what `make soak` does for ten."""

import pytest

from tests.faults.cluster import Cluster
from tests.faults.soak import Soak

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240)]

SECONDS = 60.0


def test_load_with_deaths_at_random_loses_nothing_and_grows_nothing(cluster: Cluster) -> None:
    report = Soak(cluster, SECONDS).run()
    assert report.is_good, (report, [str(life) for life in report.lives.long], report.problems)
