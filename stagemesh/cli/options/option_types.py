"""Defines the types of option values: bounds, parsing, and the way back to command lines."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from runtime.addresses import is_unspecified, split_address
from runtime.errors import InvalidRequestError
from stagemesh.units import parse_layers, parse_origins, parse_ranks, parse_size


def _check_address(address: str) -> str:
    try:
        split_address(address)
    except InvalidRequestError as error:
        raise ValueError(error.problem) from None
    return address


def _check_dialled(address: str) -> str:
    if split_address(_check_address(address))[1] == 0:
        raise ValueError(f"{address!r} cannot be dialled; name the port of the listener")
    return address


def _check_reached(address: str) -> str:
    if is_unspecified(_check_dialled(address)):
        raise ValueError(
            f"{address!r} means all interfaces of a listener; name the address at which other "
            "processes reach that machine, or 127.0.0.1 if all run on this one"
        )
    return address


def check_new_file(file: Path) -> None:
    """Raises ValueError if `file` cannot be written, before the work whose result it will hold."""
    if file.is_dir():
        raise ValueError(f"{file} is a folder; name a file")
    if not file.parent.is_dir():
        raise ValueError(f"there is no folder {file.parent}; create it first")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ValueError(f"{file} cannot be written; check its permissions, or name another file")


def _check_new_file(_: Any, file: Path | None) -> None:
    if file is not None:
        check_new_file(file)


def _check_picture(_: Any, file: Path | None) -> None:
    if file is not None and file.suffix != ".png":
        raise ValueError(f"{file} is not a PNG file; use a name that ends in .png")


def _convert(parse: Callable[[str], object], type_: Any, tokens: Sequence[Token]) -> object:
    return parse(tokens[0].value)


def _one_token(parse: Callable[[str], object], metavar: str) -> Parameter:
    converter = partial(_convert, parse)
    return Parameter(
        converter=converter, n_tokens=1, accepts_keys=False, metavar=metavar, negative=()
    )


def _size_between(minimum: str, maximum: str) -> Parameter:
    """A size in `minimum`..`maximum`, inclusive."""
    least, most = parse_size(minimum), parse_size(maximum)

    def check(_: Any, size: int | None) -> None:
        if size is not None and not least <= size <= most:
            raise ValueError(f"it must be from {minimum} to {maximum}")

    return Parameter(validator=check)


def between(minimum: float, maximum: float) -> Parameter:
    """A number in `minimum`..`maximum`, inclusive."""
    return Parameter(validator=Number(gte=minimum, lte=maximum))


Positive = Annotated[int, between(1, 2**32 - 1)]
# Bounds the time to compute one step's schedule, which blocks the event loop.
MaxSequences = Annotated[int, between(1, 4096)]
MaxStepTokens = Annotated[int, between(1, 2**16)]
MaxWaiting = Annotated[int, between(1, 10**6)]
BlockSize = Annotated[int, between(1, 1024)]
# Far more threads than cores can make a machine unusable.
Threads = Annotated[int, between(1, 1024)]
Workers = Annotated[int, between(1, 256)]
Seconds = Annotated[float, between(1e-6, 1e6)]
Wait = Annotated[float, between(0.1, 86_400)]
Replicas = Annotated[int, between(1, 64)]
NotNegative = Annotated[int, between(0, 2**32 - 1)]
Size = Annotated[int, _one_token(parse_size, "SIZE")]
# From a small request to the largest gRPC message.
RequestSize = Annotated[Size, _size_between("1KiB", "16MiB")]
Throughput = Annotated[Size, _size_between("1B", "1TiB")]
Layers = Annotated[tuple[int, ...], _one_token(parse_layers, "N,N,...")]
Ranks = Annotated[tuple[int, ...], _one_token(parse_ranks, "N[,N,...]")]
Origins = Annotated[tuple[str, ...], _one_token(parse_origins, "ORIGIN,...")]
Address = Annotated[str, _one_token(_check_address, "HOST:PORT")]
# For a connection from this process, and for connections from other machines.
Dialled = Annotated[str, _one_token(_check_dialled, "HOST:PORT")]
Reached = Annotated[str, _one_token(_check_reached, "HOST:PORT")]
NewFile = Annotated[Path | None, Parameter(validator=_check_new_file)]
Picture = Annotated[Path | None, Parameter(validator=(_check_new_file, _check_picture))]
Flag = Parameter(negative=())
ApiKey = Annotated[str | None, Parameter(show_default=False)]
ExitWithParent = Annotated[bool, Parameter(show=False, negative=())]
LogLevel = Literal["debug", "info", "warning", "error"]


def as_arguments(*groups: object) -> Iterator[str]:
    """The command line that passes `groups`, dataclasses of options, to another process."""
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
