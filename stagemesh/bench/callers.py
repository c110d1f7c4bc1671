"""Owns how a load test asks at either API; both note the same things of an answer."""

import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import httpx

from runtime.protocol.inference_types import GenerationRequest, TokenIds
from runtime.rpc.tls import trusting
from stagemesh.bench.outcome import Outcome
from stagemesh.bench.workload import Ask
from stagemesh.client.async_client import AsyncClient, key_metadata
from stagemesh.client.rpc_error import StagemeshRpcError

API = Literal["grpc", "http"]
Clock = Callable[[], float]


class Caller(Protocol):
    """One API, for as many requests at a time as one likes."""

    async def model(self) -> str:
        """The name of the served model."""

    async def token_ids(self, text: str) -> tuple[int, ...]:
        """A text's tokens."""

    async def ask(self, ask: Ask, outcome: Outcome, clock: Clock) -> None:
        """Fills `outcome` with how the answer came; raises what the API's client does."""


# What a request may fail with: its API's error, told by `str()`.
CALL_ERRORS = (StagemeshRpcError, httpx.HTTPError, ValueError)


@dataclass(frozen=True, slots=True)
class ApiAddress:
    """Where to ask, HOST:PORT, and with what: a key, and whose certificates are believed."""

    api: API
    target: str
    api_key: str | None
    tls_ca: Path | None


@asynccontextmanager
async def connect(
    address: ApiAddress, timeout_seconds: float, *, ignore_eos: bool
) -> AsyncIterator[Caller]:
    """A caller at an API; raises `CertificateError`."""
    target, api_key, tls_ca = address.target, address.api_key, address.tls_ca
    tls = None if tls_ca is None else trusting(tls_ca)
    if address.api == "grpc":
        async with AsyncClient(target, api_key=api_key, tls=tls, retry_seconds=0) as client:
            yield GrpcCaller(client, timeout_seconds, ignore_eos)
        return
    async with httpx.AsyncClient(
        base_url=f"{'http' if tls_ca is None else 'https'}://{target}",
        headers=dict(key_metadata(api_key)),
        timeout=timeout_seconds,
        limits=httpx.Limits(max_connections=None),
        verify=True if tls_ca is None else ssl.create_default_context(cafile=tls_ca),
        trust_env=False,
    ) as http:
        yield HttpCaller(http, ignore_eos)


@dataclass(frozen=True, slots=True)
class GrpcCaller:
    """Asks by `Infer`."""

    client: AsyncClient
    timeout_seconds: float
    ignore_eos: bool

    async def model(self) -> str:
        """The first that is listed."""
        return (await self.client.models())[0].name

    async def token_ids(self, text: str) -> tuple[int, ...]:
        """By `Tokenize`."""
        return await self.client.tokenize(text)

    async def ask(self, ask: Ask, outcome: Outcome, clock: Clock) -> None:
        """One call."""
        prompt = ask.prompt if isinstance(ask.prompt, str) else TokenIds(ask.prompt)
        request = GenerationRequest(
            prompts=(prompt,), max_tokens=ask.max_tokens, ignore_eos=self.ignore_eos
        )
        updates = self.client.infer(request, timeout_seconds=self.timeout_seconds)
        async with aclosing(updates):
            async for update in updates:
                if update.tokens:
                    outcome.arrivals.append(clock())
                if update.usage is not None:
                    outcome.num_input_tokens = update.usage.prompt_tokens
                    outcome.num_output_tokens = update.usage.completion_tokens


@dataclass(frozen=True, slots=True)
class HttpCaller:
    """Asks by `/v1/completions`, streamed, as any server that speaks OpenAI's API can be asked."""

    http: httpx.AsyncClient
    ignore_eos: bool

    async def model(self) -> str:
        """The first that is listed."""
        response = await self.http.get("/v1/models")
        try:
            return str(_checked(response)["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"{response.request.url} lists no model") from None

    async def token_ids(self, text: str) -> tuple[int, ...]:
        """By `/tokenize`."""
        response = await self.http.post("/tokenize", json={"prompt": text})
        tokens = _checked(response).get("tokens")
        if not isinstance(tokens, list) or not tokens:
            problem = "tells no tokens to draw random prompts from; name a file with --prompts"
            raise ValueError(f"{response.request.url} {problem}")
        return tuple(tokens)

    async def ask(self, ask: Ask, outcome: Outcome, clock: Clock) -> None:
        """One call; raises ValueError for what the API says is wrong."""
        body = {
            "prompt": ask.prompt,
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self.ignore_eos else {}),
        }
        async with self.http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                await response.aread()
                _checked(response)
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    _take(json.loads(line.removeprefix("data: ")), outcome, clock())
                elif line == "data: [DONE]":
                    return
        raise ValueError("the answer was cut off")


def _take(event: dict[str, Any], outcome: Outcome, now: float) -> None:
    if "error" in event:
        raise ValueError(event["error"]["message"])
    # A token that stops an answer, or is held back, brings an event without text, or none.
    if event["choices"]:
        outcome.arrivals.append(now)
    if usage := event.get("usage"):
        outcome.num_input_tokens = usage["prompt_tokens"]
        outcome.num_output_tokens = usage["completion_tokens"]


def _checked(response: httpx.Response) -> Any:
    """The body of a good answer; ValueError tells a bad one, also of a server that is not ours."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.status_code != httpx.codes.OK:
        error = body.get("error") if isinstance(body, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        raise ValueError(message or f"{response.request.url}: HTTP status {response.status_code}")
    if not isinstance(body, dict):
        raise ValueError(f"{response.request.url}: the answer is no JSON object")
    return body
