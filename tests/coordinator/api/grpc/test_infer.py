"""Requests through a whole coordinator and two fake stages, over gRPC at both ends."""

import asyncio
from pathlib import Path

import pytest

from protos import inference_pb2
from tests.coordinator.toy_mesh import collect, token_request, toy_mesh
from tests.coordinator.toy_model import VOCAB_SIZE, toy_answer, toy_logprobs

PROMPT = (5, 6, 7)


async def test_infer_one_prompt_gives_the_models_tokens(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        answer = (await collect(mesh.infer(token_request(PROMPT, max_tokens=20))))[0]
    assert answer.tokens == toy_answer(PROMPT, 20)
    assert answer.text == "".join(f" w{token}" for token in answer.tokens)
    assert answer.last.finish_reason == inference_pb2.FINISH_REASON_LENGTH
    assert answer.last.usage.prompt_tokens == 3
    assert answer.last.usage.completion_tokens == 20
    timings = answer.last.timings
    assert 0 <= timings.queue_seconds <= timings.first_token_seconds <= timings.total_seconds


async def test_infer_several_prompts_answers_each_by_its_index(toy_folder: Path) -> None:
    prompts = [tuple(range(1, length)) for length in (2, 40, 9)]
    async with toy_mesh(toy_folder, max_step_tokens=16) as mesh:
        answers = await collect(mesh.infer(token_request(*prompts)))
    assert {i: a.tokens for i, a in answers.items()} == {
        i: toy_answer(prompt, 8) for i, prompt in enumerate(prompts)
    }
    assert len({answer.seed for answer in answers.values()}) == 3


async def test_infer_text_and_chat_are_tokenized_by_the_model(toy_folder: Path) -> None:
    message = inference_pb2.ChatMessage(role="user", content="abc")
    request = inference_pb2.InferRequest(
        prompts=[
            inference_pb2.Prompt(text="w5 w6 w7"),
            inference_pb2.Prompt(chat=inference_pb2.Chat(messages=[message])),
        ],
        max_tokens=4,
    )
    async with toy_mesh(toy_folder) as mesh:
        answers = await collect(mesh.infer(request))
    assert answers[0].tokens == toy_answer(PROMPT, 4)
    assert answers[1].tokens == toy_answer((3, 1), 4)


async def test_infer_seed_set_is_the_seed_reported(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder) as mesh:
        answers = await collect(mesh.infer(token_request(PROMPT, PROMPT, seed=11, temperature=1)))
    assert [answer.seed for answer in answers.values()] == [11, 11]


@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_infer_max_tokens_is_exact_also_when_tiny(toy_folder: Path, max_tokens: int) -> None:
    async with toy_mesh(toy_folder) as mesh:
        answer = (await collect(mesh.infer(token_request(PROMPT, max_tokens=max_tokens))))[0]
    assert answer.tokens == toy_answer(PROMPT, max_tokens)
    assert answer.last.finish_reason == inference_pb2.FINISH_REASON_LENGTH
    assert answer.last.usage.completion_tokens == max_tokens


async def test_infer_max_tokens_unset_fills_the_context(toy_folder: Path) -> None:
    async with toy_mesh(toy_folder, max_model_len=40) as mesh:
        answer = (await collect(mesh.infer(token_request(PROMPT, max_tokens=None))))[0]
    assert answer.tokens == toy_answer(PROMPT, 37)


async def test_infer_stop_token_is_reported_without_its_text(toy_folder: Path) -> None:
    expected = toy_answer(PROMPT, 5)
    request = token_request(PROMPT, max_tokens=50)
    request.stop_token_ids.append(expected[-1])
    async with toy_mesh(toy_folder) as mesh:
        answer = (await collect(mesh.infer(request)))[0]
    assert answer.tokens == expected
    assert answer.text == "".join(f" w{token}" for token in expected[:-1])
    assert answer.last.finish_reason == inference_pb2.FINISH_REASON_STOP


async def test_infer_logprobs_of_the_whole_vocabulary_arrive(toy_folder: Path) -> None:
    request = token_request(PROMPT, max_tokens=1, num_logprobs=VOCAB_SIZE)
    async with toy_mesh(toy_folder) as mesh:
        [response] = [response async for response in mesh.infer(request)]
    top = {entry.id: entry.logprob for entry in response.tokens[0].top_logprobs}
    assert top == pytest.approx(dict(enumerate(toy_logprobs(PROMPT))), rel=1e-5)


async def test_infer_more_than_the_cache_holds_preempts_and_gives_the_same_tokens(
    toy_folder: Path,
) -> None:
    prompts = [tuple(range(n, n + 20)) for n in range(24)]
    async with toy_mesh(toy_folder, behaviour={"num_kv_blocks": 7}) as mesh:
        calls = [collect(mesh.infer(token_request(prompt, max_tokens=30))) for prompt in prompts]
        answers = [(await call)[0].tokens for call in asyncio.as_completed(calls)]
    assert sorted(answers) == sorted(toy_answer(prompt, 30) for prompt in prompts)


async def test_infer_client_that_does_not_read_delays_no_other_and_loses_nothing(
    toy_folder: Path,
) -> None:
    """Case 20: exo#1726, where full queues dropped messages and cut the output."""
    async with toy_mesh(toy_folder) as mesh:
        unread = mesh.infer(token_request(*[(n,) for n in range(8)], max_tokens=150))
        await unread.initial_metadata()
        answer = (await collect(mesh.infer(token_request(PROMPT))))[0]
        assert answer.tokens == toy_answer(PROMPT, 8)
        answers = await collect(unread)
    assert {index: answer.tokens for index, answer in answers.items()} == {
        index: toy_answer((index,), 150) for index in range(8)
    }


@pytest.mark.parametrize(
    ("pp", "num_steps_in_flight", "num_requests"), [(3, 1, 4), (4, 2, 4), (4, None, 1)]
)
async def test_infer_with_fewer_microbatches_than_stages_gives_the_same_tokens(
    toy_folder: Path, pp: int, num_steps_in_flight: int | None, num_requests: int
) -> None:
    prompts = [(n, n + 1, n) for n in range(num_requests)]
    async with toy_mesh(toy_folder, pp=pp, num_steps_in_flight=num_steps_in_flight) as mesh:
        calls = [collect(mesh.infer(token_request(prompt, max_tokens=30))) for prompt in prompts]
        answers = await asyncio.gather(*calls)
    assert [answer[0].tokens for answer in answers] == [toy_answer(p, 30) for p in prompts]
