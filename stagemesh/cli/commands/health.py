"""Owns `stagemesh health`: a probe's answer as an exit code."""

import sys
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from stagemesh.cli.health_probe import probe
from stagemesh.cli.options.option_types import Dialled, Flag
from stagemesh.cli.options.security import OPERATOR_SECURITY_DEFAULTS, OperatorSecurityOptions
from stagemesh.launcher.ports import dialable


def health(
    address: Dialled | None = None,
    /,
    *,
    ready: Annotated[bool, Flag] = False,
    timeout: Annotated[float, Parameter(validator=Number(gt=0))] = 5.0,
    security: OperatorSecurityOptions = OPERATOR_SECURITY_DEFAULTS,
) -> None:
    """Ask an API or a worker whether it is well; exits with 0 if it is, else with 1.

    Parameters
    ----------
    address
        Where the API or the worker listens. [default: 127.0.0.1:50050, or 127.0.0.1:50051 with
        --tls-dir]
    ready
        Ask for more than a sign of life: an API must serve requests, a worker be in a mesh.
    timeout
        Seconds to wait for the answer.
    """
    address = dialable(address or security.default_target)
    tls = security.channel_tls(None)
    probe(address, is_ready_asked=ready, timeout_seconds=timeout, tls=tls)
    sys.stdout.write(f"{address} is {'ready' if ready else 'alive'}\n")
