"""Many clients at once, some of which leave: the others get their answers, and nothing leaks."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from stagemesh import (
    AsyncClient,
    Completion,
    GenerationRequest,
    Sampling,
    StagemeshRpcError,
    TokenIds,
)
from tests.integration.processes import Mesh
from tests.integration.tiny_chat import TinyChat

pytestmark = pytest.mark.integration

ENDLESS = GenerationRequest(prompts=(TokenIds((5, 6, 7)),), max_tokens=4000, ignore_eos=True)


def prompt_of(client: int) -> tuple[int, ...]:
    return tuple(3 + (client * 31 + index * 7) % 300 for index in range(1 + client * 13 % 90))


async def ask(target: str, prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    request = GenerationRequest(prompts=(TokenIds(prompt),), max_tokens=num_tokens, ignore_eos=True)
    async with AsyncClient(target) as client:
        updates = [update async for update in client.infer(request, timeout_seconds=60)]
    return tuple(token.id for update in updates for token in update.tokens)


async def leave_after(target: str, num_updates: int) -> None:
    """Takes a few updates of an answer that would be long, and cancels."""
    async with AsyncClient(target) as client:
        updates = client.infer(ENDLESS, timeout_seconds=60)
        for _ in range(num_updates):
            await anext(updates)
        await updates.aclose()


async def run_out_of_time(target: str) -> None:
    async with AsyncClient(target) as client:
        with pytest.raises(StagemeshRpcError) as caught:
            async for _ in client.infer(ENDLESS, timeout_seconds=0.5):
                pass
    assert caught.value.code == "deadline_exceeded"


async def test_clients_at_once_each_get_their_own_answer(pair: Mesh, tiny_chat: TinyChat) -> None:
    prompts = [prompt_of(client) for client in range(12)]
    async with asyncio.TaskGroup() as tasks:
        answers = [
            tasks.create_task(ask(pair.target, prompt, 3 + client))
            for client, prompt in enumerate(prompts)
        ]
        for num_updates in (1, 2, 5):
            tasks.create_task(leave_after(pair.target, num_updates))
        tasks.create_task(run_out_of_time(pair.target))
    for client, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        assert answer.result() == tiny_chat.greedy(prompt, 3 + client)


async def hit_tokens(mesh: Mesh) -> float:
    async with httpx.AsyncClient(base_url=f"http://{mesh.http}") as http:
        lines = (await http.get("/metrics")).text.splitlines()
    name = 'stagemesh_prefix_cache_hit_tokens_total{replica="0"} '
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


async def test_prompts_with_a_common_beginning_share_it_and_get_their_own_answers(
    pair: Mesh, tiny_chat: TinyChat
) -> None:
    before = await hit_tokens(pair)
    beginning = tuple(5 + index * 11 % 290 for index in range(70))
    prompts = [(*beginning, 7 + client) for client in range(4)]
    async with asyncio.TaskGroup() as tasks:
        answers = [tasks.create_task(ask(pair.target, prompt, 20)) for prompt in prompts]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.result() == tiny_chat.greedy(prompt, 20)
    turn = (*prompts[0], *answers[0].result(), 9, 8)  # the answer is in the cache, too
    assert await ask(pair.target, turn, 10) == tiny_chat.greedy(turn, 10)
    assert await hit_tokens(pair) - before >= 3 * 64 + 80
    await asyncio.to_thread(pair.assert_idle)


def cached_of(completion: Completion) -> int:
    assert completion.usage is not None
    return completion.usage.cached_prompt_tokens


async def test_choices_of_one_prompt_share_its_full_blocks(pair: Mesh) -> None:
    before = await hit_tokens(pair)
    prompt = tuple(7 + index * 13 % 280 for index in range(70))  # four blocks of 16, and six more
    request = GenerationRequest(
        prompts=(TokenIds(prompt),),
        num_choices=4,
        sampling=Sampling(temperature=1.0, seed=3),
        max_tokens=12,
        ignore_eos=True,
    )
    async with AsyncClient(pair.target) as client:
        shared = await client.generate(request, timeout_seconds=60)
        assert await hit_tokens(pair) - before == 3 * 64
        assert [cached_of(completion) for completion in shared] == [0, 64, 64, 64]
        alone = await client.generate(replace(request, num_choices=1), timeout_seconds=60)
    assert [completion.choice for completion in shared] == [0, 1, 2, 3]
    assert len({completion.tokens for completion in shared}) == 4
    assert cached_of(alone[0]) == 64
    assert [token.id for token in alone[0].tokens] == [token.id for token in shared[0].tokens]
    await asyncio.to_thread(pair.assert_idle)


async def test_client_that_leaves_frees_its_slot_and_blocks(pair: Mesh) -> None:
    await leave_after(pair.target, 3)
    await asyncio.to_thread(pair.assert_idle)


async def test_client_that_leaves_during_prefill_frees_its_slot_and_blocks(pair: Mesh) -> None:
    async with AsyncClient(pair.target) as client:
        long = GenerationRequest(prompts=(TokenIds((9,) * 3500),), max_tokens=5)
        updates = client.infer(long)
        first = asyncio.create_task(anext(updates))
        while (await client.state()).num_running == 0:
            pass
        assert not first.done()
        first.cancel()
        await asyncio.wait((first,))
        await updates.aclose()
    await asyncio.to_thread(pair.assert_idle)


async def test_deadline_that_passes_ends_the_request_everywhere(pair: Mesh) -> None:
    await run_out_of_time(pair.target)
    await asyncio.to_thread(pair.assert_idle)


async def test_several_prompts_of_one_request_come_with_their_index(
    pair: Mesh, tiny_chat: TinyChat
) -> None:
    prompts = [prompt_of(client) for client in range(4)]
    request = GenerationRequest(
        prompts=tuple(TokenIds(prompt) for prompt in prompts),
        sampling=Sampling(temperature=0.0),
        max_tokens=5,
        ignore_eos=True,
    )
    answers = await asyncio.to_thread(pair.ask, request)
    for index, prompt in enumerate(prompts):
        assert answers.token_ids(index) == tiny_chat.greedy(prompt, 5)
        assert answers.end(index).usage is not None
