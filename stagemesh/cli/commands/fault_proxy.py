"""Implements `stagemesh fault-proxy`: simulates a faulty network between two processes."""

import asyncio
import sys
from contextlib import suppress
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from runtime.errors import InvalidRequestError
from stagemesh.cli.options.option_types import Address, Dialled, Flag, Size, Throughput
from stagemesh.faults.fault_proxy import FaultProxy, Faults, OneShotFault, parse_command
from stagemesh.launcher.ports import check_conflicts


# Longer than other functions: its parameters and their descriptions are the command's options.
def fault_proxy(
    *,
    to: Dialled,
    listen: Address = "127.0.0.1:0",
    delay: Annotated[float, Parameter(validator=Number(gte=0))] = 0.0,
    throttle: Throughput | None = None,
    stall: Annotated[bool, Flag] = False,
    drop_after: Size | None = None,
    truncate_after: Size | None = None,
    corrupt_after: Size | None = None,
    duplicate_after: Size | None = None,
) -> None:
    """Forward TCP connections between two processes with injected faults, to test a mesh.

    Give a worker the proxy's address as --coordinator or as --advertise. Lines on standard input
    change the faults: `delay 0.5`, `throttle 10000`, `stall`, `drop`, `truncate`,
    `corrupt`, `duplicate` (the last four optionally after a number of bytes), and `heal`.

    Parameters
    ----------
    to
        Address to which connections are forwarded.
    listen
        Listening address of the proxy.
    delay
        Seconds by which each chunk of up to 64 KiB is delayed.
    throttle
        Bytes per second, for each direction of each connection.
    stall
        Forward nothing, but keep connections open.
    drop_after
        Reset a connection after this number of bytes.
    truncate_after
        Close a connection in the middle of a chunk after this number of bytes.
    corrupt_after
        Flip one bit after this number of bytes.
    duplicate_after
        Send a chunk twice after this number of bytes.
    """
    check_conflicts({"--listen": listen, "--to": to})
    once = (
        (drop_after, OneShotFault.DROP),
        (truncate_after, OneShotFault.TRUNCATE),
        (corrupt_after, OneShotFault.CORRUPT),
        (duplicate_after, OneShotFault.DUPLICATE),
    )
    one_shots = tuple((after, fault) for after, fault in once if after is not None)
    with suppress(KeyboardInterrupt):
        asyncio.run(_run(listen, to, Faults(delay, throttle, stall, one_shots)))


async def _run(listen: str, to: str, faults: Faults) -> None:
    async with FaultProxy.listening(listen, to) as (proxy, address):
        proxy.set(faults)
        sys.stdout.write(f"{address} -> {to}\n")
        sys.stdout.flush()
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                faults = parse_command(faults, line)
            except InvalidRequestError as error:
                sys.stderr.write(f"{error}\n")
                continue
            proxy.set(faults)
        await asyncio.Event().wait()
