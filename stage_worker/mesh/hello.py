"""How a worker introduces itself to a coordinator: who it is, and where others reach it."""

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
    """What is known once the worker listens; addresses are those that it is bound to.

    `held` says which part's weights are loaded at the moment.
    """

    coordinator: str
    worker_id: str
    device_kind: str
    address: str
    metrics_address: str
    held: Callable[[], stage_pb2.Assignment | None] = lambda: None

    async def hello(self) -> mesh_pb2.Hello:
        """The first message; OSError if the coordinator's name or a way to it is not known."""
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
        """Where stages reach the worker, and Prometheus its metrics, if it can from there."""
        address = _reachable(self.address, self.coordinator)
        metrics_address = _reachable(self.metrics_address, self.coordinator)
        if is_loopback(metrics_address) and not is_loopback(address):
            metrics_address = ""
        return address, metrics_address


def _reachable(address: str, coordinator: str) -> str:
    """`address`, its wildcard host replaced by the one that faces the coordinator."""
    if not is_unspecified(address):
        return address
    _, port = split_address(address)
    family, kind, protocol, _, peer = socket.getaddrinfo(
        *split_address(coordinator), type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(peer)  # sends nothing: it only makes the system choose a route
        local = probe.getsockname()[0]
    return f"[{local}]:{port}" if ":" in local else f"{local}:{port}"
