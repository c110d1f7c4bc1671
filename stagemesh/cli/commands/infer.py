"""Owns `stagemesh infer`: one prompt in, its text streamed to standard output."""

import re
import sys
from collections.abc import Iterable
from typing import Annotated, Any, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from runtime.errors import EmptyPromptError, InvalidRequestError
from runtime.protocol.inference_types import Chat, ChatMessage, GenerationRequest, Prompt, Update
from stagemesh.cli.options.option_types import ApiKey, Dialled, Flag, NotNegative
from stagemesh.cli.options.sampling import SAMPLING_DEFAULTS, SamplingOptions
from stagemesh.cli.options.security import CLIENT_SECURITY_DEFAULTS, ClientSecurityOptions
from stagemesh.cli.options.structured import STRUCTURED_DEFAULTS, StructuredOptions
from stagemesh.cli.waiting_notice import WaitingNotice
from stagemesh.client.async_client import DEFAULT_TARGET
from stagemesh.client.sync_client import Client
from stagemesh.display.render import speed, summary

_LIKE_AN_OPTION: Final = re.compile(r"--?[A-Za-z][\w-]*(=.*)?")


def _check_prompt(_: Any, prompt: str) -> None:
    """A prompt may begin with a hyphen; one that looks like an option is a misspelt one."""
    if _LIKE_AN_OPTION.fullmatch(prompt):
        raise ValueError(
            f"{prompt} is no option; `stagemesh infer --help` lists them (to say just that, use "
            f"echo {prompt} | stagemesh infer -)"
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
    sampling: SamplingOptions = SAMPLING_DEFAULTS,
    structured: StructuredOptions = STRUCTURED_DEFAULTS,
    raw: Annotated[bool, Flag] = False,
    ignore_eos: Annotated[bool, Flag] = False,
    model_name: Annotated[str, Parameter(show_default=False)] = "",
    timeout: Annotated[float | None, Parameter(validator=Number(gt=0))] = None,
    stats: Annotated[bool, Flag] = False,
    security: ClientSecurityOptions = CLIENT_SECURITY_DEFAULTS,
) -> None:
    """Ask a running mesh and stream its answer.

    The prompt is one user message of a chat, unless --raw is given. The text goes to standard
    output, everything else to standard error.

    Parameters
    ----------
    prompt
        What to say; - reads it from standard input.
    target
        The API of the mesh.
    api_key
        The key that the API asks for; others cannot see its environment variable.
    max_tokens
        Tokens to generate at most. [default: as many as the context holds]
    min_tokens
        Tokens to generate at least.
    stop
        A text that ends the answer and is left out of it; give it several times for several.
    raw
        Send the prompt as it is, without the model's chat template.
    ignore_eos
        Go on past the end-of-sequence token.
    model_name
        Insist on a served model's name. [default: any]
    timeout
        Seconds until the request is given up. [default: none]
    stats
        Tell counts and speed on standard error afterwards.
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
    """What to say, from standard input for `-`; refuses what cannot be sent."""
    try:
        text = sys.stdin.read() if prompt == "-" else prompt
        text.encode()
    except UnicodeError:
        raise InvalidRequestError(field="PROMPT", problem="it is not text in UTF-8") from None
    if not text:
        raise EmptyPromptError(index=0)
    return text


def warn_unless_ready(client: Client) -> None:
    """Says what a request that waits for the mesh waits for."""
    state = client.state()
    if not state.ready:
        sys.stderr.write(f"{summary(state)}; the answer comes when it is ready\n")


def stream_text(updates: Iterable[Update]) -> Update | None:
    """Writes text as it comes, ended by a newline in any case; returns the last update."""
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
