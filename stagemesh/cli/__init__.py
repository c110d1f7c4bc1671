"""Owns the command `stagemesh`: its commands, and what errors and Ctrl-C mean to its exit code.

Exit codes: 0 done, 1 failed (standard error says why, after `error: `), 2 wrong usage, 3 an
address to listen on is taken, 70 a bug of ours (with its traceback), 130 interrupted.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

from cyclopts import App, CycloptsError
from cyclopts.exceptions import UnusedCliTokensError
from cyclopts.panel import CycloptsPanel
from rich.panel import Panel

from runtime.errors import PortTakenError, StagemeshError
from runtime.version import VERSION
from stagemesh.cli import examples
from stagemesh.cli.commands.bench import bench
from stagemesh.cli.commands.certs import certs
from stagemesh.cli.commands.chat import chat
from stagemesh.cli.commands.coordinator import coordinator
from stagemesh.cli.commands.demo import demo
from stagemesh.cli.commands.drain import drain
from stagemesh.cli.commands.fault_proxy import fault_proxy
from stagemesh.cli.commands.health import health
from stagemesh.cli.commands.infer import infer
from stagemesh.cli.commands.keys import keys
from stagemesh.cli.commands.node import node
from stagemesh.cli.commands.prepare import prepare
from stagemesh.cli.commands.serve import serve
from stagemesh.cli.commands.simulate import simulate
from stagemesh.cli.commands.status import status
from stagemesh.cli.commands.top import top
from stagemesh.cli.commands.version import version
from stagemesh.cli.commands.worker import worker
from stagemesh.cli.options.environment import PREFIX, drop_empty_variables, read_variables
from stagemesh.client.rpc_error import StagemeshRpcError
from stagemesh.launcher.child_process import ERROR_PREFIX, EXIT_ADDRESS_TAKEN, EXIT_FAILED

EXIT_BUG = 70
EXIT_INTERRUPTED = 130
# What the system says of output that it cannot take.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _explain(error: CycloptsError) -> Panel:
    """What is shown of a mistake in the command line."""
    message: object = error
    if isinstance(error, UnusedCliTokensError):
        words = ", ".join(repr(token) for token in error.unused_tokens or ())
        message = f"Nothing is meant to follow here: {words}. Put a text with spaces in quotes."
    return CycloptsPanel(message)


app = App(
    name="stagemesh",
    help="Distributed LLM inference, pipeline first: a model cut into stages over many processes.",
    help_epilogue=examples.STAGEMESH,
    help_format="markdown",
    version=VERSION,
    config=(read_variables, drop_empty_variables),
    result_action="return_value",
    error_formatter=_explain,
)
app.command(serve, help_epilogue=examples.SERVE, sort_key=1)
app.command(infer, help_epilogue=examples.INFER, sort_key=2)
app.command(chat, help_epilogue=examples.CHAT, sort_key=2)
app.command(status, help_epilogue=examples.STATUS, sort_key=3)
app.command(top, help_epilogue=examples.TOP, sort_key=3)
app.command(demo, help_epilogue=examples.DEMO, sort_key=4)
app.command(prepare, help_epilogue=examples.PREPARE, sort_key=5)
app.command(coordinator, help_epilogue=examples.COORDINATOR, sort_key=6)
app.command(worker, help_epilogue=examples.WORKER, sort_key=7)
app.command(node, help_epilogue=examples.NODE, sort_key=7)
app.command(drain, help_epilogue=examples.DRAIN, sort_key=8)
app.command(health, help_epilogue=examples.HEALTH, sort_key=8)
app.command(bench)
app.command(keys)
app.command(certs, help_epilogue=examples.CERTS, sort_key=8)
app.command(fault_proxy, help_epilogue=examples.FAULT_PROXY, sort_key=9)
app.command(simulate, help_epilogue=examples.SIMULATE, sort_key=9)
app.command(version, help_epilogue="", sort_key=10)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line `arguments`, by default this process's, and exits."""
    _print_what_the_terminal_can_show()
    arguments = sys.argv[1:] if arguments is None else arguments
    _check_text(arguments)
    try:
        app(arguments)
    except PortTakenError as error:
        _fail(str(error), EXIT_ADDRESS_TAKEN)
    except (StagemeshError, StagemeshRpcError) as error:
        _fail(str(error), EXIT_FAILED)
    except BrokenPipeError:
        # Who read our output has enough, as `head` has; Python must not flush to it again.
        sys.stdout = None
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except OSError as error:
        if error.filename is None and error.errno not in _NO_ROOM:
            _fail_with_traceback()
        _fail(f"{error.filename or 'standard output'}: {error.strerror}", EXIT_FAILED)
    except Exception:  # noqa: BLE001
        _fail_with_traceback()
    sys.exit(0)


def _fail_with_traceback() -> NoReturn:
    traceback.print_exc()
    sys.exit(EXIT_BUG)


def _print_what_the_terminal_can_show() -> None:
    """Has a `?` stand for a character that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _check_text(arguments: Sequence[str]) -> None:
    """Most of it is told to other processes, which take text alone."""
    variables = (value for name, value in os.environ.items() if name.startswith(PREFIX))
    for text in (*arguments, *variables):
        try:
            text.encode()
        except UnicodeEncodeError:
            _fail(f"{text[:100]!r} is not text in UTF-8; type or name it anew", EXIT_FAILED)


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"{ERROR_PREFIX}{' '.join(message.split())}\n")
    sys.exit(code)
