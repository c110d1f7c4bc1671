"""Owns what an option's value may be: type, bounds, and how it is read from the command line."""

import os
from collections.abc import Callable, Sequence
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
        raise ValueError(f"{address!r} is nowhere to reach; name the port that is listened on")
    return address


def _check_reached(address: str) -> str:
    if is_unspecified(_check_dialled(address)):
        raise ValueError(
            f"{address!r} stands for all interfaces, to listen on; name the address at which "
            "others reach that machine, or 127.0.0.1 where all are on this one"
        )
    return address


def check_new_file(file: Path) -> None:
    """Finds before hours of work, not after them, that their outcome cannot be written.

    Raises ValueError.
    """
    if file.is_dir():
        raise ValueError(f"{file} is a folder; name a file")
    if not file.parent.is_dir():
        raise ValueError(f"there is no folder {file.parent}; make it first")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ValueError(f"{file} cannot be written; name a file that can")


def _check_new_file(_: Any, file: Path | None) -> None:
    if file is not None:
        check_new_file(file)


def _check_picture(_: Any, file: Path | None) -> None:
    if file is not None and file.suffix != ".png":
        raise ValueError(f"{file} is to be a PNG; name a file that ends in .png")


def _convert(parse: Callable[[str], object], type_: Any, tokens: Sequence[Token]) -> object:
    return parse(tokens[0].value)


def _one_token(parse: Callable[[str], object], metavar: str) -> Parameter:
    converter = partial(_convert, parse)
    return Parameter(
        converter=converter, n_tokens=1, accepts_keys=False, metavar=metavar, negative=()
    )


def _size_between(minimum: str, maximum: str) -> Parameter:
    """A size from `minimum` to `maximum`, both included."""
    least, most = parse_size(minimum), parse_size(maximum)

    def check(_: Any, size: int | None) -> None:
        if size is not None and not least <= size <= most:
            raise ValueError(f"it must be from {minimum} to {maximum}")

    return Parameter(validator=check)


def between(minimum: float, maximum: float) -> Parameter:
    """A number from `minimum` to `maximum`, both included."""
    return Parameter(validator=Number(gte=minimum, lte=maximum))


Positive = Annotated[int, between(1, 2**32 - 1)]
# What a mesh can make sense of: the schedule of one step is computed on the event loop.
MaxSequences = Annotated[int, between(1, 4096)]
MaxStepTokens = Annotated[int, between(1, 2**16)]
MaxWaiting = Annotated[int, between(1, 10**6)]
BlockSize = Annotated[int, between(1, 1024)]
# More threads than a machine has cores make it slow; far more bring it down.
Threads = Annotated[int, between(1, 1024)]
Workers = Annotated[int, between(1, 256)]
Seconds = Annotated[float, between(1e-6, 1e6)]
Wait = Annotated[float, between(0.1, 86_400)]
Replicas = Annotated[int, between(1, 64)]
NotNegative = Annotated[int, between(0, 2**32 - 1)]
Size = Annotated[int, _one_token(parse_size, "SIZE")]
# A gRPC message has no more; below, no request is worth sending.
RequestSize = Annotated[Size, _size_between("1KiB", "16MiB")]
Throughput = Annotated[Size, _size_between("1B", "1TiB")]
Layers = Annotated[tuple[int, ...], _one_token(parse_layers, "N,N,...")]
Ranks = Annotated[tuple[int, ...], _one_token(parse_ranks, "N[,N,...]")]
Origins = Annotated[tuple[str, ...], _one_token(parse_origins, "ORIGIN,...")]
Address = Annotated[str, _one_token(_check_address, "HOST:PORT")]
# To dial from this machine, and to name to others.
Dialled = Annotated[str, _one_token(_check_dialled, "HOST:PORT")]
Reached = Annotated[str, _one_token(_check_reached, "HOST:PORT")]
NewFile = Annotated[Path | None, Parameter(validator=_check_new_file)]
Picture = Annotated[Path | None, Parameter(validator=(_check_new_file, _check_picture))]
Flag = Parameter(negative=())
ApiKey = Annotated[str | None, Parameter(show_default=False)]
ExitWithParent = Annotated[bool, Parameter(show=False, negative=())]
LogLevel = Literal["debug", "info", "warning", "error"]
