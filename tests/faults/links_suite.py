"""Every fault of a proxy on every link of a mesh, and on that of a client.

Flipped bits are in `tls_suite.py`: without TLS nobody notices one in an activation. Ranks of a
stage are joined by no link that a proxy could stand in (`ranks_suite.py`).

`make test-faults` runs it; its name keeps it out of other runs, because it takes minutes.
"""

import pytest

from stagemesh import StagemeshRpcError
from stagemesh.faults.fault_proxy import Faults, OneShotFault
from tests.faults.asking import REQUESTS, Asked, asking, disturbed, undisturbed
from tests.faults.cluster import Cluster
from tests.faults.links import DATA_LINKS, JOIN_LINKS, inject_faults
from tests.faults.proxies import proxy_to

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# An accident comes in the middle of a step.
DATA_FAULTS = {
    "delay": Faults(delay_seconds=0.02),
    "throttle": Faults(bytes_per_second=60_000),
    "stall": Faults(is_stalled=True),
    "drop": Faults(one_shots=((2000, OneShotFault.DROP),)),
    "truncate": Faults(one_shots=((2000, OneShotFault.TRUNCATE),)),
    "duplicate": Faults(one_shots=((2000, OneShotFault.DUPLICATE),)),
}
# An accident comes with the next heartbeat.
JOIN_FAULTS = {
    "delay": Faults(delay_seconds=1.0),
    "throttle": Faults(bytes_per_second=100),
    "stall": Faults(is_stalled=True),
    "drop": Faults(one_shots=((1, OneShotFault.DROP),)),
    "truncate": Faults(one_shots=((1, OneShotFault.TRUNCATE),)),
    "duplicate": Faults(one_shots=((1, OneShotFault.DUPLICATE),)),
}


@pytest.mark.parametrize("fault", DATA_FAULTS)
@pytest.mark.parametrize("link", DATA_LINKS)
def test_bad_link_costs_no_token(link: str, fault: str, cluster: Cluster) -> None:
    proxy = DATA_LINKS[link](cluster)
    disturbed(cluster, lambda: inject_faults(proxy, DATA_FAULTS[fault]))


@pytest.mark.parametrize("fault", JOIN_FAULTS)
@pytest.mark.parametrize("link", JOIN_LINKS)
def test_bad_membership_link_costs_no_token(link: str, fault: str, cluster: Cluster) -> None:
    proxy = JOIN_LINKS[link](cluster)
    disturbed(cluster, lambda: inject_faults(proxy, JOIN_FAULTS[fault]))


# No duplicated message: without TLS it is indistinguishable from two, and networks make none.
@pytest.mark.parametrize("fault", [fault for fault in DATA_FAULTS if fault != "duplicate"])
def test_bad_link_of_a_client_gives_it_the_right_tokens_or_an_error(
    fault: str, cluster: Cluster
) -> None:
    expected = undisturbed(cluster, REQUESTS[0])
    with proxy_to(cluster.target) as proxy, asking(cluster, *REQUESTS[1:]):
        asked = Asked(REQUESTS[0], proxy.address)
        asked.start()
        asked.wait_for_tokens(3)
        proxy.set(DATA_FAULTS[fault])
        try:
            assert asked.result() == expected
        except StagemeshRpcError:
            # What had come is right as far as it goes.
            assert tuple(asked.tokens) == expected[: len(asked.tokens)]
            assert fault not in ("delay", "throttle")
