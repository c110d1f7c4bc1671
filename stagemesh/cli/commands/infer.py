"""Implements `stagemesh infer`: sends one prompt and streams the answer to standard output."""

import re
import sys
from collections.abc import Iterable
from typing import Annotated, Any, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from runtime.errors import EmptyPromptError, InvalidRequestError
from runtime.protocol.inference_types import Chat, ChatMessage, GenerationRequest, Prompt, Update
from stagemesh.cli.options.generation import (
    SAMPLING_DEFAULTS,
    STRUCTURED_DEFAULTS,
    SamplingArguments,
    StructuredArguments,
)
from stagemesh.cli.options.option_types import ApiKey, Dialled, Flag, NotNegative
from stagemesh.cli.options.security import CLIENT_SECURITY_DEFAULTS, ClientSecurityOptions
from stagemesh.cli.waiting_notice import WaitingNotice
from stagemesh.client.async_client import DEFAULT_TARGET
from stagemesh.client.sync_client import Client
from stagemesh.display.render import speed, summary

_LIKE_AN_OPTION: Final = re.compile(r"--?[A-Za-z][\w-]*(=.*)?")


def _check_prompt(_: Any, prompt: str) -> None:
    """Rejects a prompt that looks like a misspelt option; others may start with a hyphen."""
    if _LIKE_AN_OPTION.fullmatch(prompt):
        raise ValueError(
            f"{prompt} is no option; `stagemesh infer --help` lists them (to send it as a prompt, "
            f"use echo {prompt} | stagemesh infer -)"
        )


# Longer than other functions: its parameters and their descriptions are the command's options.
def infer(
    prompt: Annotated[str, Parameter(allow_leading_hyphen=True, validator=_check_prompt)],
    /,
    *,
    target: Dialled = DEFAULT_TARGET,
    api_key: ApiKey = None,
    max_tokens: NotNegative | None = None,
    min_tokens: NotNegative = 0,
    stop: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    sampling: SamplingArguments = SAMPLING_DEFAULTS,
    structured: StructuredArguments = STRUCTURED_DEFAULTS,
    raw: Annotated[bool, Flag] = False,
    ignore_eos: Annotated[bool, Flag] = False,
    model_name: Annotated[str, Parameter(show_default=False)] = "",
    timeout: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    stats: Annotated[bool, Flag] = False,
    security: ClientSecurityOptions = CLIENT_SECURITY_DEFAULTS,
) -> None:
    """Send a prompt to a running mesh and stream the answer.

    The prompt is sent as one user message of a chat, unless --raw is given. The answer goes to
    standard output, everything else to standard error.

    Parameters
    ----------
    prompt
        Text of the prompt; - reads it from standard input.
    target
        Address of the coordinator's gRPC API.
    api_key
        API key. Prefer its environment variable: other users of this machine can read command
        lines.
    max_tokens
        Most tokens of the answer. [default: limited by the context length]
    min_tokens
        Fewest tokens of the answer.
    stop
        Text that ends the answer and is not part of it; repeat the option for several texts.
    raw
        Send the prompt unchanged, without the model's chat template.
    ignore_eos
        Continue after the end-of-sequence token.
    model_name
        Require this name of the served model. [default: any model]
    timeout
        Seconds after which the request is cancelled. [default: none]
    stats
        Print token counts and speed on standard error after the answer.
    """
    text = _read(prompt)
    message: Prompt = text if raw else Chat((ChatMessage("user", text),))
    request = GenerationRequest(
        prompts=(message,),
        sampling=sampling.sampling(),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=stop,
        ignore_eos=ignore_eos,
        structured_output=structured.structured_output(),
        model=model_name,
    )
    with Client(target, api_key=api_key, tls=security.api_tls()) as client:
        warn_unless_ready(client)
        with WaitingNotice(client.state, sys.stderr.write) as notice:
            last = stream_text(notice.watch(client.infer(request, timeout_seconds=timeout)))
    if stats and last is not None and last.usage is not None and last.timings is not None:
        sys.stderr.write(speed(last.usage, last.timings) + "\n")


def _read(prompt: str) -> str:
    """The prompt, or standard input for `-`; raises for text that cannot be sent."""
    try:
        text = sys.stdin.read() if prompt == "-" else prompt
        text.encode()
    except UnicodeError:
        raise InvalidRequestError(field="PROMPT", problem="it is not text in UTF-8") from None
    if not text:
        raise EmptyPromptError(index=0)
    return text


def warn_unless_ready(client: Client) -> None:
    """Prints what the mesh waits for, if it is not ready."""
    state = client.state()
    if not state.ready:
        sys.stderr.write(f"{summary(state)}; the answer starts when it is ready\n")


def stream_text(updates: Iterable[Update]) -> Update | None:
    """Writes the text of updates as they arrive, then a newline; returns the last update."""
    last = None
    try:
        for last in updates:
            sys.stdout.write(last.text)
            sys.stdout.flush()
    finally:
        if last is not None:
            sys.stdout.write("\n")
            sys.stdout.flush()
    return last
