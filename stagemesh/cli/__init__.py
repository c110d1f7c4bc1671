"""Registers the commands of `stagemesh`, reads options from the environment, and sets exit codes.

Exit codes: 0 success, 1 failure (reported on standard error after `error: `), 2 wrong usage, 3 a
listening address is in use, 70 an internal error (with its traceback), 130 interrupted.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

from cyclopts import App, CycloptsError
from cyclopts.argument import ArgumentCollection
from cyclopts.config import Env
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
from stagemesh.client.rpc_error import StagemeshRpcError
from stagemesh.launcher.child_process import ERROR_PREFIX, EXIT_ADDRESS_TAKEN, EXIT_FAILED

EXIT_BUG = 70
EXIT_INTERRUPTED = 130
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# The environment variable of --pp is STAGEMESH_PP, for every command.
_PREFIX = "STAGEMESH_"
_SOURCE = "env"


def _explain(error: CycloptsError) -> Panel:
    """The message for a command line that cannot be parsed."""
    message: object = error
    if isinstance(error, UnusedCliTokensError):
        words = ", ".join(repr(token) for token in error.unused_tokens or ())
        message = f"Unexpected arguments: {words}. Put text with spaces in quotes."
    return CycloptsPanel(message)


def _drop_empty_variables(
    app: App, commands: tuple[str, ...], arguments: ArgumentCollection
) -> None:
    """Treats empty variables as unset: Docker Compose passes unset variables as empty ones."""
    for argument in arguments:
        argument.tokens = [
            token for token in argument.tokens if token.source != _SOURCE or token.value
        ]


app = App(
    name="stagemesh",
    help="Distributed LLM inference: runs the pipeline stages of a model in many processes.",
    help_epilogue=examples.STAGEMESH,
    help_format="markdown",
    version=VERSION,
    config=(Env(_PREFIX, command=False, source=_SOURCE), _drop_empty_variables),
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
    _replace_unprintable_characters()
    arguments = sys.argv[1:] if arguments is None else arguments
    _check_text(arguments)
    try:
        app(arguments)
    except PortTakenError as error:
        _fail(str(error), EXIT_ADDRESS_TAKEN)
    except (StagemeshError, StagemeshRpcError) as error:
        _fail(str(error), EXIT_FAILED)
    except BrokenPipeError:
        # The reader of standard output, such as `head`, has exited: a flush would fail again.
        sys.stdout = None
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except OSError as error:
        if error.filename is None and error.errno not in _DISK_FULL:
            _fail_with_traceback()
        _fail(f"{error.filename or 'standard output'}: {error.strerror}", EXIT_FAILED)
    except Exception:  # noqa: BLE001
        _fail_with_traceback()
    sys.exit(0)


def _fail_with_traceback() -> NoReturn:
    traceback.print_exc()
    sys.exit(EXIT_BUG)


def _replace_unprintable_characters() -> None:
    """Prints `?` for characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _check_text(arguments: Sequence[str]) -> None:
    """Rejects arguments and variables that are not valid UTF-8."""
    variables = (value for name, value in os.environ.items() if name.startswith(_PREFIX))
    for text in (*arguments, *variables):
        try:
            text.encode()
        except UnicodeEncodeError:
            _fail(f"{text[:100]!r} is not valid UTF-8 text; type it again", EXIT_FAILED)


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"{ERROR_PREFIX}{' '.join(message.split())}\n")
    sys.exit(code)
