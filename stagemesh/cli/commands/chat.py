"""Owns `stagemesh chat`: a conversation in the terminal, one line a turn."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from runtime.protocol.inference_types import Chat, ChatMessage, GenerationRequest, Update
from stagemesh.cli.commands.infer import stream_text, warn_unless_ready
from stagemesh.cli.options.option_types import ApiKey, Dialled, NotNegative
from stagemesh.cli.options.sampling import SAMPLING_DEFAULTS, SamplingOptions
from stagemesh.cli.options.security import CLIENT_SECURITY_DEFAULTS, ClientSecurityOptions
from stagemesh.cli.waiting_notice import WaitingNotice
from stagemesh.client.async_client import DEFAULT_TARGET
from stagemesh.client.rpc_error import StagemeshRpcError
from stagemesh.client.sync_client import Client

_HELP = "Ctrl-C ends an answer, /reset forgets the conversation, Ctrl-D ends the chat\n"


def chat(
    *,
    target: Dialled = DEFAULT_TARGET,
    api_key: ApiKey = None,
    system: str | None = None,
    max_tokens: NotNegative | None = None,
    sampling: SamplingOptions = SAMPLING_DEFAULTS,
    timeout: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    security: ClientSecurityOptions = CLIENT_SECURITY_DEFAULTS,
) -> None:
    """Talk with a running mesh in the terminal.

    Each line is one turn, and the whole conversation goes to the model each time. Ctrl-C ends an
    answer, /reset forgets the conversation, Ctrl-D ends the chat.

    Parameters
    ----------
    target
        The API of the mesh.
    api_key
        The key that the API asks for; others cannot see its environment variable.
    system
        What the model is told before the conversation. [default: nothing]
    max_tokens
        Tokens of one answer at most. [default: as many as the context holds]
    timeout
        Seconds until an answer is given up. [default: none]
    """
    opening = () if system is None else (ChatMessage("system", system),)
    template = GenerationRequest(prompts=(), sampling=sampling.sampling(), max_tokens=max_tokens)
    with Client(target, api_key=api_key, tls=security.api_tls()) as client:
        warn_unless_ready(client)
        _talk(client, opening, template, timeout)


def _talk(
    client: Client,
    opening: tuple[ChatMessage, ...],
    template: GenerationRequest,
    timeout: float | None,
) -> None:
    """One answer to each line; a turn that fails is told and forgotten."""
    messages = opening
    for line in _lines():
        if line == "/reset":
            messages = opening
            continue
        turn = (*messages, ChatMessage("user", line))
        request = replace(template, prompts=(Chat(turn),))
        try:
            with WaitingNotice(client.state, sys.stderr.write) as notice:
                updates = client.infer(request, timeout_seconds=timeout)
                text = _answer(notice.watch(updates))
        except StagemeshRpcError as error:
            sys.stderr.write(f"error: {error}\n")
            continue
        messages = (*turn, ChatMessage("assistant", text))


def _lines() -> Iterator[str]:
    """What is typed, without empty lines, or what standard input holds."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        import readline  # noqa: F401 - arrow keys and history for `input`

        sys.stderr.write(_HELP)
    while True:
        try:
            line = input("> " if is_terminal else "").strip()
        except EOFError:
            return
        if line:
            yield line


def _answer(updates: Iterator[Update]) -> str:
    """Shows an answer as it comes; what there is of it when Ctrl-C ends it."""
    pieces: list[str] = []

    def noted() -> Iterator[Update]:
        for update in updates:
            pieces.append(update.text)
            yield update

    try:
        stream_text(noted())
    except KeyboardInterrupt:
        sys.stderr.write("(ended)\n")
    return "".join(pieces)
