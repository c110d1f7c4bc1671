"""Owns `stagemesh keys`: who may use the APIs."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from coordinator.security.api_keys import Tenant, add_key
from stagemesh.cli import examples
from stagemesh.cli.options.option_types import Positive

keys = App(name="keys", help="Make API keys for the APIs of a mesh.", sort_key=9)


@keys.command(help_epilogue=examples.KEYS)
def add(
    name: str,
    /,
    *,
    api_keys: Annotated[Path, Parameter(metavar="FILE")],
    max_in_flight: Positive | None = None,
    tokens_per_minute: Positive | None = None,
) -> None:
    """Make a key, print it once, and append its hash to a file of keys.

    APIs that run with --api-keys FILE take it from the next second on. To take a key back,
    delete its lines from the file.

    Parameters
    ----------
    name
        Whose key it is: letters, digits, - and _.
    api_keys
        The file, which is made if there is none.
    max_in_flight
        Requests at the same time. [default: what the APIs are told]
    tokens_per_minute
        Tokens in a minute, read and generated. [default: what the APIs are told]
    """
    key = add_key(api_keys, Tenant(name, max_in_flight, tokens_per_minute))
    sys.stderr.write(f"the key of {name}, which is kept nowhere; {api_keys} has its hash:\n")
    sys.stdout.write(f"{key}\n")
