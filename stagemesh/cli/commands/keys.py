"""Implements `stagemesh keys`: creates API keys."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from coordinator.security.api_keys import Tenant, add_key
from stagemesh.cli import examples
from stagemesh.cli.options.option_types import Positive

keys = App(name="keys", help="Create API keys for the APIs of a mesh.", sort_key=9)


@keys.command(help_epilogue=examples.KEYS)
def add(
    name: str,
    /,
    *,
    api_keys: Annotated[Path, Parameter(metavar="FILE")],
    max_in_flight: Positive | None = None,
    tokens_per_minute: Positive | None = None,
) -> None:
    """Create an API key, print it once, and append its hash to a key file.

    Coordinators that run with --api-keys FILE accept the key within a second. To revoke a key,
    delete its lines from the file.

    Parameters
    ----------
    name
        Name of the key's user: letters, digits, - and _.
    api_keys
        Key file; created if it does not exist.
    max_in_flight
        Most concurrent requests with this key. [default: the coordinator's --key-max-in-flight]
    tokens_per_minute
        Most prompt and answer tokens per minute. [default: the coordinator's
        --key-tokens-per-minute]
    """
    key = add_key(api_keys, Tenant(name, max_in_flight, tokens_per_minute))
    sys.stderr.write(f"the key of {name}, which is not stored; {api_keys} holds only its hash:\n")
    sys.stdout.write(f"{key}\n")
