"""The links of a mesh by name, as the proxies that lead them."""

from collections.abc import Callable

from stagemesh.faults.fault_proxy import Faults
from tests.faults.cluster import Cluster, Place
from tests.faults.proxies import Proxy

# Where steps, activations and results pass.
DATA_LINKS: dict[str, Callable[[Cluster], Proxy]] = {
    "coordinator to first stage": lambda cluster: cluster.worker_at(Place(0)).calls,
    "first stage to last": lambda cluster: cluster.worker_at(Place(1)).frames,
    "last stage to coordinator": lambda cluster: cluster.worker_at(Place(1)).calls,
}
# Where hellos and heartbeats pass, some fifty bytes a second.
JOIN_LINKS: dict[str, Callable[[Cluster], Proxy]] = {
    "stage's membership": lambda cluster: cluster.worker_at(Place(1)).membership,
    "spare's membership": lambda cluster: cluster.spare().membership,
}


def inject_faults(proxy: Proxy, faults: Faults) -> None:
    """Sets the faults; returns once an accident among them has happened."""
    proxy.set(faults)
    for num_bytes, _ in faults.one_shots:
        proxy.wait_for_bytes(num_bytes)
