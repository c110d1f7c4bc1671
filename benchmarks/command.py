"""Shared parts of the benchmarks' command lines: help, value parsing, errors.

Invalid values are reported before anything is measured.
"""

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from runtime.errors import StagemeshError
from stagemesh.cli.options.option_types import check_new_file
from stagemesh.client.rpc_error import StagemeshRpcError

T = TypeVar("T")

BACKENDS: Final = ("auto", "shm", "gloo", "nccl")
MODEL_HELP: Final = "as in `stagemesh serve`"

_EXIT_FAILED, _EXIT_INTERRUPTED = 1, 130
_MOST: Final = 10**6


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keeps the line breaks of descriptions, and prints every default."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def make_parser(
    name: str, about: str | None, takes: str, *examples: str
) -> argparse.ArgumentParser:
    """Makes the parser of `python -m benchmarks.NAME`; `examples` are argument lists."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=about,
        epilog=epilog(name, takes, *examples),
        formatter_class=HelpFormatter,
    )


def epilog(name: str, takes: str, *examples: str) -> str:
    """Formats the examples at the end of a command's help."""
    lines = (f"    python -m benchmarks.{name} {example}".rstrip() for example in examples)
    return "\n".join((f"Takes {takes}.", "", "Examples:", *lines))


def whole(least: int = 1, most: int = _MOST) -> Callable[[str], int]:
    """Parses an integer between bounds."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            problem = f"{text!r} is no whole number from {least} to {most}"
            raise argparse.ArgumentTypeError(problem)
        return number

    return read


threads: Final = whole(most=1024)


def above_zero(most: float = float(_MOST)) -> Callable[[str], float]:
    """Parses a number above 0."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not 0.0 < number <= most:
            problem = f"{text!r} is no number above 0 and up to {most:g}"
            raise argparse.ArgumentTypeError(problem)
        return number

    return read


def checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Wraps `parse`, so that argparse prints the message of its ValueError."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


@checked
def new_file(text: str) -> Path:
    """Parses the path of a writable file."""
    check_new_file(Path(text))
    return Path(text)


def run(command: Callable[[], object]) -> NoReturn:
    """Ends the process with the exit code that `command` returns, or 0.

    Where something refuses or fails in its own words, these are one line and the code is 1.
    """
    try:
        code = command()
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
    except Exception as error:
        if (message := _message_of(error)) is None:
            raise
        sys.stderr.write(f"error: {message}\n")
        sys.exit(_EXIT_FAILED)
    sys.exit(code if isinstance(code, int) else 0)


def ignore_interrupts() -> None:
    """Ignores Ctrl-C in a child process, which its parent ends: a terminal signals both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _message_of(error: BaseException) -> str | None:
    """The message of an expected error; None for a bug, which needs its traceback."""
    if isinstance(error, BaseExceptionGroup):
        texts = [_message_of(each) for each in error.exceptions]
        return None if None in texts else texts[0]
    return str(error) if isinstance(error, StagemeshError | StagemeshRpcError) else None
