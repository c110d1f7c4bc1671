"""Owns `stagemesh fault-proxy`: a bad network between two processes of a mesh, for tests."""

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
    """Pass bytes on between two processes, and spoil them: to try what a mesh does then.

    Have a worker join with --coordinator at this proxy, or say with --advertise that it answers
    here. Lines on standard input change what is done: `delay 0.5`, `throttle 10000`, `stall`,
    `drop`, `truncate`, `corrupt`, `duplicate` (each with a number of bytes, if not at once),
    and `heal`.

    Parameters
    ----------
    to
        Where the process behind it listens.
    listen
        Where it is dialled instead.
    delay
        Seconds that each piece of at most 64 KiB waits.
    throttle
        Bytes a second that pass, in each direction of each connection.
    stall
        Let nothing pass, and close nothing.
    drop_after
        Reset a connection once so many bytes have passed.
    truncate_after
        End a connection in the middle of a piece then.
    corrupt_after
        Change a bit then.
    duplicate_after
        Pass a piece twice then.
    """
    check_conflicts({"--listen": listen, "--to": to})
    once = (
        (drop_after, OneShotFault.DROP),
        (truncate_after, OneShotFault.TRUNCATE),
        (corrupt_after, OneShotFault.CORRUPT),
        (duplicate_after, OneShotFault.DUPLICATE),
    )
    accidents = tuple((after, accident) for after, accident in once if after is not None)
    with suppress(KeyboardInterrupt):
        asyncio.run(_run(listen, to, Faults(delay, throttle, stall, accidents)))


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
