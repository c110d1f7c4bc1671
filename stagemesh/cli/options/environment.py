"""Owns how options are read from the environment: STAGEMESH_PP for --pp, of whatever command."""

from cyclopts import App
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Env

PREFIX = "STAGEMESH_"
_SOURCE = "env"

read_variables = Env(PREFIX, command=False, source=_SOURCE)


def drop_empty_variables(
    app: App, commands: tuple[str, ...], arguments: ArgumentCollection
) -> None:
    """An empty variable says nothing: Compose passes on as empty what nobody has set."""
    for argument in arguments:
        argument.tokens = [
            token for token in argument.tokens if token.source != _SOURCE or token.value
        ]
