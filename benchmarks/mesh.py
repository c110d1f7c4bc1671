"""Starts the mesh that a benchmark measures: real processes on free ports."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from stagemesh import AsyncClient
from stagemesh.cli.options.common import (
    AddressOptions,
    BatchingOptions,
    DeviceOptions,
    LogOptions,
    PlanOptions,
)
from stagemesh.cli.options.launching import MeshOptions, make_launch_plan
from stagemesh.launcher.launcher import LaunchPlan, local_mesh

UNCACHED: Final = BatchingOptions(prefix_cache="off")
"""Without a prefix cache: runs repeat their prompts, and the reference has no cache."""


@asynccontextmanager
async def running_mesh(
    model: str, plan: PlanOptions, batching: BatchingOptions, device: DeviceOptions
) -> AsyncIterator[AsyncClient]:
    """Starts a mesh; yields a client once it serves."""
    async with (
        launched_mesh(model, plan, batching, device) as launched,
        AsyncClient(launched.target) as client,
    ):
        yield client


@asynccontextmanager
async def launched_mesh(
    model: str, plan: PlanOptions, batching: BatchingOptions, device: DeviceOptions
) -> AsyncIterator[LaunchPlan]:
    """A mesh that serves, as what it was started from: its APIs' addresses."""
    addresses = AddressOptions(grpc="127.0.0.1:0", http="127.0.0.1:0", mesh="127.0.0.1:0")
    mesh_options = MeshOptions(plan, batching, addresses)
    launch_plan = make_launch_plan(model, mesh_options, device, LogOptions())
    async with local_mesh(launch_plan, lambda line: print(line, file=sys.stderr)) as mesh:
        await mesh.wait_until_ready(lambda state: None)
        yield launch_plan
