"""Random bodies and messages at both doors: an answer or one clear error, and nothing is left."""

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from protos import inference_pb2
from tests.coordinator.toy_mesh import collect, token_request, toy_mesh
from tests.coordinator.toy_model import toy_answer

NUM_REQUESTS = 600

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
    if source.random() < 0.1:  # torn or damaged
        content = content[: source.randrange(len(content))] + source.randbytes(source.randrange(4))
    return content


async def test_random_bodies_are_answered_or_refused_and_never_fail(toy_folder: Path) -> None:
    source = random.Random(1)
    statuses: dict[int, int] = {}
    headers = {"content-type": "application/json"}
    async with toy_mesh(toy_folder) as mesh, mesh.http() as client:
        await mesh.until_ready()
        for _ in range(NUM_REQUESTS):
            path = source.choice(list(GOOD_BODIES))
            content = random_body(source, path)
            response = await client.post(path, content=content, headers=headers)
            assert response.status_code < 500, (path, content, response.text)
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        state = await mesh.until_idle()
        assert state.replicas[0].epoch.counter == 1
        answer = (await collect(mesh.infer(token_request((5, 6, 7)))))[0]
        assert answer.tokens == toy_answer((5, 6, 7), 8)
    assert min(statuses[200], statuses[400]) > NUM_REQUESTS // 20


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
    request.stop.extend(source.choices(("", "w5", "\n", "x" * 2000), (1, 9, 9, 1), k=1))
    request.stop_token_ids.extend(source.sample(integers[:4], source.randint(0, 2)))
    return request


async def test_random_messages_are_answered_or_refused_and_never_fail(toy_folder: Path) -> None:
    source = random.Random(2)
    num_answered = 0
    codes = grpc.StatusCode
    statuses = (codes.OK, codes.INVALID_ARGUMENT, codes.RESOURCE_EXHAUSTED)
    async with toy_mesh(toy_folder) as mesh:
        await mesh.until_ready()
        for _ in range(NUM_REQUESTS):
            request = random_message(source)
            call = mesh.infer(request)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await collect(call)
                num_answered += 1
            status = await call.code()
            assert status in statuses, (request, await call.details())
        state = await mesh.until_idle()
        assert state.replicas[0].epoch.counter == 1
    assert num_answered > NUM_REQUESTS // 20
