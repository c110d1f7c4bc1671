"""Random requests for both APIs, valid, invalid and damaged; each gets an answer or one error.

Used by the tests and by the longer run of `make test-fuzz`.
"""

import asyncio
import contextlib
import json
import random
from collections import Counter
from typing import Any

import grpc
import grpc.aio

from protos import inference_pb2
from tests.coordinator.toy_mesh import ToyMesh, collect, token_request
from tests.coordinator.toy_model import toy_answer

ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    7,
    96,
    97,
    2**31,
    2**32,
    2**63,
    2**64,
    10**400,
    0.5,
    1e-320,
    1e39,
    1e308,
    "",
    "w5",
    "w5 w6 w7",
    "\ud800",
    "\x00",
    "🙂" * 50,
    [],
    [5],
    [5, 6, 7],
    ["w5"],
    [[5], [6, 7]],
    [[]],
    [None],
    [1.5],
    [{}],
    {},
    {"5": 1},
    {"x": []},
    {"type": "text"},
    {"include_usage": True},
)
FIELDS = (
    *("prompt", "messages", "model", "max_tokens", "max_completion_tokens", "min_tokens", "n"),
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "include_stop", "stop_token_ids"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs"),
    *("top_logprobs", "echo", "stream", "stream_options", "ignore_eos", "user", "suffix", "tools"),
    *("priority", "ttft_target_seconds", "tpot_target_seconds", "cache_salt"),
    *("tokens", "add_generation_prompt", "response_format", "", "é"),
)
GOOD_VALUES: dict[str, Any] = {
    "min_tokens": 2,
    "n": 3,
    "temperature": 0.5,
    "top_p": 0.5,
    "seed": 5,
    "stop": ["w5", "6 w"],
    "logit_bias": {"5": -3},
    "presence_penalty": 1,
    "stream": True,
    "echo": True,
    "ignore_eos": True,
    "model": "toy",
}
GOOD_BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": [5, 6], "max_tokens": 4},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4},
    "/tokenize": {"prompt": "w5"},
    "/detokenize": {"tokens": [5]},
}


def random_body(source: random.Random, path: str) -> bytes:
    body: dict[str, Any] = dict(GOOD_BODIES[path])
    for name in source.sample(sorted(GOOD_VALUES), source.randrange(3)):
        body[name] = GOOD_VALUES[name]
    for _ in range(source.randrange(3)):
        body[source.choice(FIELDS)] = source.choice(ODD_VALUES)
    content = json.dumps(body).encode()
    if source.random() < 0.1:  # truncated or damaged
        content = content[: source.randrange(len(content))] + source.randbytes(source.randrange(4))
    return content


def random_message(source: random.Random) -> inference_pb2.InferRequest:
    floats = (0.0, -1.0, 0.5, 1.0, 3.0, 1e38, float("nan"), float("inf"))
    integers = (0, 1, 5, 96, 97, 2**31, 2**32 - 1)
    sampling: dict[str, Any] = {}
    for name in ("temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"):
        if source.random() < 0.3:
            sampling[name] = source.choice(floats)
    for name in ("top_k", "seed", "num_logprobs"):
        if source.random() < 0.3:
            sampling[name] = source.choice(integers)
    prompts = [(5, 6), (), (97,), (96,) * 600]
    request = token_request(
        *source.choices(prompts, weights=(20, 1, 1, 1), k=source.choice((1, 1, 2, 0))),
        max_tokens=source.choice((0, 1, 4, 4, 4, None)),
        **sampling,
    )
    for name in ("num_choices", "min_tokens"):
        if source.random() < 0.2:
            setattr(request, name, source.choice(integers))
    if request.num_choices > 5 and not request.HasField("max_tokens"):
        request.max_tokens = 4  # or one request would take most of a run's time
    request.stop.extend(source.choices(("", "w5", "\n", "x" * 2000), (1, 9, 9, 1), k=1))
    request.stop_token_ids.extend(source.sample(integers[:4], source.randint(0, 2)))
    return request


# Sufficient for every answer here: a call that hangs is a failure.
CALL_SECONDS = 100.0
METHODS = ("Infer", "Infer", "Infer", "Infer", "Tokenize", "Detokenize", "Cancel")
GOOD_STATUSES = (
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    # The model's name may be damaged.
    grpc.StatusCode.NOT_FOUND,
)


def random_head(source: random.Random) -> bytes:
    """Bytes that are not a valid request, up to the end of its headers."""
    line = source.choice(
        (b"GET /health HTTP/1.1", b"POST /v1/completions HTTP/1.1", b"PRI * HTTP/2.0")
    )
    headers = b"host: x\r\ncontent-length: 0\r\nx: \xff\r\n"
    return damaged(source, line + b"\r\n" + headers) + b"\r\n\r\n"


def damaged(source: random.Random, content: bytes) -> bytes:
    """The bytes with some changed, removed or inserted."""
    damage = bytearray(content)
    for _ in range(source.randrange(1, 5)):
        place = source.randrange(len(damage) + 1)
        damage[place : place + source.randrange(3)] = source.randbytes(source.randrange(3))
    return bytes(damage)


async def fuzz_http(mesh: ToyMesh, num_requests: int, seed: int) -> Counter[int]:
    """The number of responses by status; asserts that none is a failure and no state is left."""
    source = random.Random(seed)
    statuses: Counter[int] = Counter()
    headers = {"content-type": "application/json"}
    async with mesh.http() as client:
        for _ in range(num_requests):
            if source.random() < 0.05:
                head = random_head(source)
                statuses[status := await _status_of(mesh, head)] += 1
                assert status < 500, head
                continue
            path = source.choice(list(GOOD_BODIES))
            content = random_body(source, path)
            response = await client.post(path, content=content, headers=headers)
            assert response.status_code < 500, (path, content, response.text)
            statuses[response.status_code] += 1
    await check_unharmed(mesh)
    return statuses


async def fuzz_grpc(mesh: ToyMesh, num_requests: int, seed: int) -> Counter[grpc.StatusCode]:
    """The number of responses by status; asserts that none is a failure and no state is left."""
    source = random.Random(seed)
    statuses: Counter[grpc.StatusCode] = Counter()
    for _ in range(num_requests):
        request = random_message(source)
        content = request.SerializeToString()
        if source.random() < 0.2:
            content = damaged(source, content)
        method: Any = mesh.channel.unary_stream(
            f"/stagemesh.v1.Inference/{source.choice(METHODS)}",
            response_deserializer=inference_pb2.InferResponse.FromString,
        )
        call = method(content, timeout=CALL_SECONDS)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await collect(call)
        statuses[status := await call.code()] += 1
        assert status in GOOD_STATUSES, (request, content, await call.details())
    await check_unharmed(mesh)
    return statuses


async def check_unharmed(mesh: ToyMesh) -> None:
    """Asserts that the mesh is idle, in its first epoch, and gives the right tokens."""
    state = await mesh.until_idle()
    assert state.replicas[0].epoch.counter == 1
    answer = (await collect(mesh.infer(token_request((5, 6, 7)))))[0]
    assert answer.tokens == toy_answer((5, 6, 7), 8)


async def _status_of(mesh: ToyMesh, head: bytes) -> int:
    """The status that a raw connection gets; 0 if it is closed without a response."""
    host, _, port = mesh.addresses.http.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head)
    line = b""
    with contextlib.suppress(ConnectionError):
        line = await reader.readline()
    writer.close()
    return int(line.split()[1]) if line else 0
