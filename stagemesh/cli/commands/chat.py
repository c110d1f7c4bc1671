"""Implements `stagemesh chat`: a conversation in the terminal, one line per turn."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from runtime.protocol.inference_types import Chat, ChatMessage, GenerationRequest, Update
from stagemesh.cli.commands.infer import stream_text, warn_unless_ready
from stagemesh.cli.options.generation import SAMPLING_DEFAULTS, SamplingArguments
from stagemesh.cli.options.option_types import ApiKey, Dialled, NotNegative
from stagemesh.cli.options.security import CLIENT_SECURITY_DEFAULTS, ClientSecurityOptions
from stagemesh.cli.waiting_notice import WaitingNotice
from stagemesh.client.async_client import DEFAULT_TARGET
from stagemesh.client.rpc_error import StagemeshRpcError
from stagemesh.client.sync_client import Client

_HELP = "Ctrl-C stops an answer, /reset starts a new conversation, Ctrl-D ends the chat\n"


def chat(
    *,
    target: Dialled = DEFAULT_TARGET,
    api_key: ApiKey = None,
    system: str | None = None,
    max_tokens: NotNegative | None = None,
    sampling: SamplingArguments = SAMPLING_DEFAULTS,
    timeout: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    security: ClientSecurityOptions = CLIENT_SECURITY_DEFAULTS,
) -> None:
    """Chat with a running mesh in the terminal.

    Each line is one turn, and every turn sends the whole conversation. Ctrl-C stops an answer,
    /reset starts a new conversation, Ctrl-D ends the chat.

    Parameters
    ----------
    target
        Address of the coordinator's gRPC API.
    api_key
        API key. Prefer its environment variable: other users of this machine can read command
        lines.
    system
        System message at the start of the conversation. [default: none]
    max_tokens
        Most tokens of one answer. [default: limited by the context length]
    timeout
        Seconds after which an answer is cancelled. [default: none]
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
    """Answers each line; a turn that fails is reported and not kept in the conversation."""
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
    """Lines from the terminal or from standard input, without empty ones."""
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
    """Streams an answer and returns its text, which is partial after Ctrl-C."""
    pieces: list[str] = []

    def collected() -> Iterator[Update]:
        for update in updates:
            pieces.append(update.text)
            yield update

    try:
        stream_text(collected())
    except KeyboardInterrupt:
        sys.stderr.write("(stopped)\n")
    return "".join(pieces)
