"""Owns the mesh that a benchmark measures: real processes on free ports, ended with the block."""

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stagemesh import AsyncClient
from stagemesh.cli.launching import make_launch_plan
from stagemesh.cli.options import (
    AccessOptions,
    AddressOptions,
    BatchingOptions,
    DeviceOptions,
    LogOptions,
    PlanOptions,
)
from stagemesh.launcher import local_mesh
from stagemesh.values import parse_layers


@asynccontextmanager
async def serving_mesh(model: str, options: argparse.Namespace) -> AsyncIterator[AsyncClient]:
    """A client of a mesh with `options.pp` stages, `options.threads` and `options.layers`."""
    plan = make_launch_plan(
        model,
        PlanOptions(pp=options.pp, layers=parse_layers(options.layers) if options.layers else None),
        BatchingOptions(steps_in_flight=options.steps_in_flight),
        DeviceOptions(threads=options.threads),
        AddressOptions(grpc="127.0.0.1:0", mesh="127.0.0.1:0"),
        AccessOptions(),
        LogOptions(),
    )
    async with local_mesh(plan, lambda line: print(line, file=sys.stderr)) as mesh:
        await mesh.until_ready(lambda state: None)
        async with AsyncClient(plan.target) as client:
            yield client
