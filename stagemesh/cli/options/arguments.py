"""Owns how options are handed on to a child process: the command line that says the same."""

from collections.abc import Iterator
from dataclasses import fields


def as_arguments(*groups: object) -> Iterator[str]:
    """The command line that gives `groups`, dataclasses of options, to another process."""
    for group in groups:
        for field in fields(group):  # type: ignore[arg-type]
            yield from _as_argument("--" + field.name.replace("_", "-"), getattr(group, field.name))


def _as_argument(name: str, value: object) -> Iterator[str]:
    match value:
        case None | False:
            return
        case True:
            yield name
        case tuple():
            yield from (name, ",".join(map(str, value)))
        case _:
            yield from (name, str(value))
