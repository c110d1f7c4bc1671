"""Sends a load test's requests to the gRPC or the HTTP API, and records their timing."""

import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import httpx

from runtime.protocol.inference_types import GenerationRequest, TokenIds
from runtime.rpc.tls import trusting
from stagemesh.bench.workload import BenchRequest
from stagemesh.client.async_client import AsyncClient, key_metadata
from stagemesh.client.rpc_error import StagemeshRpcError


@dataclass(slots=True)
class RequestRecord:
    """Filled while the answer arrives; times are in seconds since the start of the load."""

    sent_at: float
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    # The arrival of each chunk of the answer; a chunk may hold several tokens.
    arrivals: list[float] = field(default_factory=list)
    # The time of completion or failure.
    ended_at: float = 0.0
    error: str = ""

    @property
    def ttft(self) -> float:
        """Time to first token, in seconds."""
        return self.arrivals[0] - self.sent_at

    @property
    def latency(self) -> float:
        """End-to-end latency, in seconds."""
        return self.ended_at - self.sent_at

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None for fewer than two tokens."""
        if self.num_output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.num_output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive chunks."""
        return [
            after - before for before, after in zip(self.arrivals, self.arrivals[1:], strict=False)
        ]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The records of all requests, in order of their scheduled times."""

    records: list[RequestRecord]
    duration_seconds: float


API = Literal["grpc", "http"]
Clock = Callable[[], float]


class Caller(Protocol):
    """A client of one API, for any number of concurrent requests."""

    async def model(self) -> str:
        """Returns the name of the served model."""

    async def token_ids(self, text: str) -> tuple[int, ...]:
        """Returns the token ids of a text."""

    async def send(self, request: BenchRequest, record: RequestRecord, clock: Clock) -> None:
        """Sends one request and fills `record`; raises one of `CALL_ERRORS`."""


# The exceptions of a failed request; `str()` is the message.
CALL_ERRORS = (StagemeshRpcError, httpx.HTTPError, ValueError)


@dataclass(frozen=True, slots=True)
class ApiTarget:
    """The HOST:PORT of an API, its API key, and the CA certificates that verify it."""

    api: API
    target: str
    api_key: str | None
    tls_ca: Path | None


@asynccontextmanager
async def connect(
    address: ApiTarget, timeout_seconds: float, *, ignore_eos: bool
) -> AsyncIterator[Caller]:
    """Connects to an API; raises `CertificateError`."""
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
    """Sends requests with the RPC `Infer`."""

    client: AsyncClient
    timeout_seconds: float
    ignore_eos: bool

    async def model(self) -> str:
        """Returns the first listed model."""
        return (await self.client.models())[0].name

    async def token_ids(self, text: str) -> tuple[int, ...]:
        """Uses the RPC `Tokenize`."""
        return await self.client.tokenize(text)

    async def send(self, request: BenchRequest, record: RequestRecord, clock: Clock) -> None:
        """Streams one answer."""
        prompt = request.prompt if isinstance(request.prompt, str) else TokenIds(request.prompt)
        generation = GenerationRequest(
            prompts=(prompt,), max_tokens=request.max_tokens, ignore_eos=self.ignore_eos
        )
        updates = self.client.infer(generation, timeout_seconds=self.timeout_seconds)
        async with aclosing(updates):
            async for update in updates:
                if update.tokens:
                    record.arrivals.append(clock())
                if update.usage is not None:
                    record.num_input_tokens = update.usage.prompt_tokens
                    record.num_output_tokens = update.usage.completion_tokens


@dataclass(frozen=True, slots=True)
class HttpCaller:
    """Streams from `/v1/completions`, which other servers with OpenAI's API also have."""

    http: httpx.AsyncClient
    ignore_eos: bool

    async def model(self) -> str:
        """Returns the first listed model."""
        response = await self.http.get("/v1/models")
        try:
            return str(_checked(response)["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"{response.request.url} lists no model") from None

    async def token_ids(self, text: str) -> tuple[int, ...]:
        """Uses `/tokenize`."""
        response = await self.http.post("/tokenize", json={"prompt": text})
        tokens = _checked(response).get("tokens")
        if not isinstance(tokens, list) or not tokens:
            problem = "returns no tokens for random prompts; give a file with --prompts"
            raise ValueError(f"{response.request.url} {problem}")
        return tuple(tokens)

    async def send(self, request: BenchRequest, record: RequestRecord, clock: Clock) -> None:
        """Streams one answer; raises ValueError for an error that the API reports."""
        body = {
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
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
                    _record_event(json.loads(line.removeprefix("data: ")), record, clock())
                elif line == "data: [DONE]":
                    return
        raise ValueError("the answer ended early")


def _record_event(event: dict[str, Any], record: RequestRecord, now: float) -> None:
    if "error" in event:
        raise ValueError(event["error"]["message"])
    # A stop token, or text held back for stop strings, causes an event without text or none.
    if event["choices"]:
        record.arrivals.append(now)
    if usage := event.get("usage"):
        record.num_input_tokens = usage["prompt_tokens"]
        record.num_output_tokens = usage["completion_tokens"]


def _checked(response: httpx.Response) -> Any:
    """The JSON object of a response; ValueError for an error, also of other servers."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.status_code != httpx.codes.OK:
        error = body.get("error") if isinstance(body, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        raise ValueError(message or f"{response.request.url}: HTTP status {response.status_code}")
    if not isinstance(body, dict):
        raise ValueError(f"{response.request.url}: the response is not a JSON object")
    return body
