"""Makes the hello that a worker sends when it joins: its identity, device and addresses."""

import asyncio
import os
import platform
import socket
from collections.abc import Callable
from dataclasses import dataclass

from protos import mesh_pb2, stage_pb2
from runtime.addresses import is_loopback, is_unspecified, split_address
from runtime.version import BUILD, PROTOCOL_VERSION
from stage_worker.device.device_info import describe_device


@dataclass(frozen=True, slots=True)
class HelloFactory:
    """What a hello is made from; the addresses are those that the worker has bound.

    `held` returns the assignment whose weights are loaded now.
    """

    coordinator: str
    worker_id: str
    device_kind: str
    address: str
    metrics_address: str
    held: Callable[[], stage_pb2.Assignment | None] = lambda: None

    async def hello(self) -> mesh_pb2.Hello:
        """The hello; raises OSError if the coordinator's name or a route to it is unknown."""
        address, metrics_address = await asyncio.to_thread(self._reachable_addresses)
        return mesh_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            build=BUILD,
            worker_id=self.worker_id,
            node=platform.node(),
            address=address,
            device=describe_device(self.device_kind),
            pid=os.getpid(),
            metrics_address=metrics_address,
            held=self.held(),
        )

    def _reachable_addresses(self) -> tuple[str, str]:
        """The addresses of the worker and of its metrics, empty if only loopback reaches these."""
        address = _reachable(self.address, self.coordinator)
        metrics_address = _reachable(self.metrics_address, self.coordinator)
        if is_loopback(metrics_address) and not is_loopback(address):
            metrics_address = ""
        return address, metrics_address


def _reachable(address: str, coordinator: str) -> str:
    """`address`, with a wildcard host replaced by the local address of the coordinator's route."""
    if not is_unspecified(address):
        return address
    _, port = split_address(address)
    family, kind, protocol, _, peer = socket.getaddrinfo(
        *split_address(coordinator), type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(peer)  # sends nothing; makes the system choose a route
        local = probe.getsockname()[0]
    return f"[{local}]:{port}" if ":" in local else f"{local}:{port}"
