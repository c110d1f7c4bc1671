"""Owns `stagemesh health`: a probe's answer as an exit code."""

import sys
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from stagemesh.cli.options import Address, Flag
from stagemesh.client import DEFAULT_TARGET
from stagemesh.health import probe


def health(
    address: Address = DEFAULT_TARGET,
    /,
    *,
    ready: Annotated[bool, Flag] = False,
    timeout: Annotated[float, Parameter(validator=Number(gt=0))] = 5.0,
) -> None:
    """Ask a door or a worker whether it is well; exits with 0 if it is, else with 1.

    Parameters
    ----------
    address
        Where the door or the worker listens.
    ready
        Ask for more than a sign of life: a door must serve requests, a worker be in a mesh.
    timeout
        Seconds to wait for the answer.
    """
    probe(address, is_ready_asked=ready, timeout_seconds=timeout)
    sys.stdout.write(f"{address} is {'ready' if ready else 'alive'}\n")
