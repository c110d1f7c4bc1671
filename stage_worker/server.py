"""The worker process: listens, joins the mesh, serves until told to stop, leaves nothing behind.

`run_worker` raises a StagemeshError when the process should end with a reason: its port is taken,
its device does not exist, or the coordinator refused it.
"""

import asyncio
import os
import platform
import socket
import uuid
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import torch

from protos import mesh_pb2
from runtime import rpc
from runtime.errors import InvalidRequestError, find_error
from runtime.logs import get_logger
from runtime.process import run
from runtime.version import BUILD, PROTOCOL_VERSION
from stage_worker.executor import DeviceThread
from stage_worker.join import stay_joined
from stage_worker.loading import WorkerDevice
from stage_worker.service import StageService
from stage_worker.status import describe_device
from stage_worker.worker import Worker

_GRACE_SECONDS = 2.0
_WILDCARDS = {"0.0.0.0", "::"}

_log = get_logger()


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What one worker process is told at its start; `device` is `auto`, `cpu` or `cuda`.

    `model_path` stands in for the model that the coordinator names, on a node where it lies
    elsewhere. `exit_with_parent` stops the process when standard input ends.
    """

    coordinator: str
    listen: str = "127.0.0.1:0"
    model_path: str | None = None
    device: str = "auto"
    num_threads: int = 1
    exit_with_parent: bool = False


def run_worker(options: WorkerOptions) -> None:
    """Serve until SIGTERM, SIGINT or the parent's end; raises what makes the process give up."""
    try:
        run(partial(serve_worker, options), exit_with_parent=options.exit_with_parent)
    except ExceptionGroup as group:
        raise find_error(group) or group from None


async def serve_worker(options: WorkerOptions, stop: asyncio.Event) -> None:
    """The worker's life on the running event loop, until `stop` is set or it is refused."""
    device = WorkerDevice(_choose_device(options.device), options.num_threads, options.model_path)
    worker_id = str(uuid.uuid4())
    server = rpc.make_server()
    with closing(DeviceThread(device.num_threads)) as thread:
        async with asyncio.TaskGroup() as tasks:
            worker = Worker(worker_id, device, thread, tasks)
            StageService(worker).add_to(server)
            address = await rpc.bind(server, options.listen)
            await server.start()
            try:
                hello = await _hello(worker_id, device, address, options.coordinator)
                membership = tasks.create_task(stay_joined(options.coordinator, hello))
                await stop.wait()
                membership.cancel()
            finally:
                await worker.close()
                await server.stop(_GRACE_SECONDS)
    _log.info("stopped", worker_id=worker_id)


async def _hello(
    worker_id: str, device: WorkerDevice, address: str, coordinator: str
) -> mesh_pb2.Hello:
    return mesh_pb2.Hello(
        protocol_version=PROTOCOL_VERSION,
        build=BUILD,
        worker_id=worker_id,
        node=platform.node(),
        address=await asyncio.to_thread(_reachable_address, address, coordinator),
        device=describe_device(device.kind),
        pid=os.getpid(),
    )


def _reachable_address(address: str, coordinator: str) -> str:
    """`address`, its wildcard host replaced by the one that faces the coordinator."""
    host, port = rpc.split_address(address)
    if host not in _WILDCARDS:
        return address
    family, kind, protocol, _, peer = socket.getaddrinfo(
        *rpc.split_address(coordinator), type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(peer)  # sends nothing: it only makes the system choose a route
        local = probe.getsockname()[0]
    return f"[{local}]:{port}" if ":" in local else f"{local}:{port}"


def _choose_device(asked: str) -> str:
    has_cuda = torch.cuda.is_available()
    if asked == "auto":
        return "cuda" if has_cuda else "cpu"
    if asked == "cuda" and not has_cuda:
        raise InvalidRequestError(field="device", problem="this machine has no CUDA device")
    return asked
