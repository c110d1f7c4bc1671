"""Stages of several ranks: what their links carry, and that one rank's failure ends all of them.

Cases 3 (sglang#28424, #10214, exo PR#2048: ranks that decide by themselves diverge and hang) and 15
(TGI#654: the collectives' timeout is hard-coded).
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from protos import stage_pb2
from runtime.protocol.step import Step
from stage_worker.transport.frame_codec import WireFrame
from stage_worker.transport.receiver import Receiver, Sender
from tests.stage_worker.live_workers import (
    PROMPT,
    RanksPlan,
    Stages,
    coordinator_frame,
    live_workers,
    load_ranks,
    next_result,
    open_epoch_on_ranks,
    prefill,
    read_failure,
)
from tests.tiny_models import TinyModel, make_tiny_llama

ROW_BYTES = 4 * 64  # of one token's hidden state
# Much less than the collective timeout, also on a busy machine.
AT_ONCE_SECONDS = 10.0


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Four key/value heads: up to four ranks, three of them with uneven shares."""
    return make_tiny_llama(tmp_path_factory.mktemp("model"), "untied_mha_bias")


@pytest.fixture
def wire_bytes(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """Received payload bytes, by the sending rank and the begin of the receiver's interval."""
    counted: Counter[tuple[int, int]] = Counter()
    accept = Receiver.accept

    def counting(self: Receiver, sender: Sender, frame: WireFrame, now: float) -> None:
        interval = self._plan.hidden_interval
        if interval is not None:
            counted[sender.rank, interval[0]] += frame.payload.nbytes
        accept(self, sender, frame, now)

    monkeypatch.setattr(Receiver, "accept", counting)
    return counted


@pytest.mark.parametrize(
    ("plan", "parts"),
    [
        (RanksPlan((2, 2), (1, 1)), {(0, 0): 64}),
        (RanksPlan((2, 2), (2, 2)), {(0, 0): 32, (1, 32): 32}),
        (RanksPlan((2, 2), (3, 3)), {(0, 0): 22, (1, 22): 21, (2, 43): 21}),
        (RanksPlan((2, 2), (2, 1)), {(0, 0): 32, (1, 0): 32}),
        (RanksPlan((2, 2), (2, 3)), {(0, 0): 22, (0, 22): 10, (1, 22): 11, (1, 43): 21}),
    ],
    ids=["1-1", "2-2", "3-3", "2-1", "2-3"],
)
async def test_link_carries_exactly_the_interval_that_its_ranks_share(
    plan: RanksPlan,
    parts: dict[tuple[int, int], int],
    tiny_model: TinyModel,
    wire_bytes: Counter[tuple[int, int]],
) -> None:
    async with live_workers(plan.num_workers) as workers:
        stages = plan.arrange(workers)
        await load_ranks(stages, tiny_model.folder, plan.layer_counts)
        epoch = await open_epoch_on_ranks(stages)
        result = await _run(stages, epoch, prefill())
    assert wire_bytes == {
        link: len(PROMPT) * width * ROW_BYTES // 64 for link, width in parts.items()
    }
    expected = tiny_model.logprobs(PROMPT)[-1]
    assert result.sampled[0].token_id == int(expected.argmax())
    assert result.sampled[0].logprob == pytest.approx(float(expected.max()), rel=1e-4)


async def test_stages_of_two_one_and_three_ranks_compute_the_model(tiny_model: TinyModel) -> None:
    plan = RanksPlan((1, 1, 2), (2, 1, 3))
    async with live_workers(plan.num_workers) as workers:
        stages = plan.arrange(workers)
        await load_ranks(stages, tiny_model.folder, plan.layer_counts)
        epoch = await open_epoch_on_ranks(stages)
        result = await _run(stages, epoch, prefill())
    expected = tiny_model.logprobs(PROMPT)[-1]
    assert result.sampled[0].token_id == int(expected.argmax())
    assert result.sampled[0].logprob == pytest.approx(float(expected.max()), rel=1e-4)


def _another_header(frame: stage_pb2.Frame) -> None:
    frame.header.chunks[0].token_ids[0] += 1


def _another_block(frame: stage_pb2.Frame) -> None:
    frame.header.chunks[0].new_block_ids[0] += 1


def _wrong_position(frame: stage_pb2.Frame) -> None:
    frame.header.chunks[0].position = 9


def _step_left_out(frame: stage_pb2.Frame) -> None:
    frame.step = frame.header.step = 1


@pytest.mark.parametrize(
    ("change", "code", "values"),
    [
        (_another_header, "header_mismatch", ("expected step 0 with digest", "got step 0 with")),
        (_another_block, "header_mismatch", ("expected step 0 with digest", "got step 0 with")),
        (_wrong_position, "position", ("expected position 0", "got 9")),
        (_step_left_out, "step_gap", ("expected step 0", "got step 1")),
    ],
)
@pytest.mark.parametrize("wrong_rank", [0, 1])
async def test_rank_with_a_different_header_ends_the_epoch_on_all_ranks(
    wrong_rank: int,
    change: Callable[[stage_pb2.Frame], None],
    code: str,
    values: tuple[str, str],
    tiny_model: TinyModel,
) -> None:
    async with live_workers(2) as workers:
        stages: Stages = [workers]
        await load_ranks(stages, tiny_model.folder, (4,))
        epoch = await open_epoch_on_ranks(stages)
        for rank, worker in enumerate(workers):
            frame = coordinator_frame(epoch, prefill())
            if rank == wrong_rank:
                change(frame)
            await worker.forward().write(frame)
        async with asyncio.timeout(AT_ONCE_SECONDS):
            failures = [await read_failure(worker, epoch) for worker in workers]
        assert [failure.code for failure in failures] == [code, code]
        for failure in failures:
            assert all(value in failure.message for value in values)
        # No rank is left in a collective: the next epoch serves.
        epoch = await open_epoch_on_ranks(stages, counter=2)
        assert len((await _run(stages, epoch, prefill())).sampled) == 1


async def test_rank_with_a_malformed_activation_ends_the_epoch_on_all_ranks(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = RanksPlan((2, 2), (2, 2))
    async with live_workers(plan.num_workers) as workers:
        stages = plan.arrange(workers)
        await load_ranks(stages, tiny_model.folder, plan.layer_counts)
        epoch = await open_epoch_on_ranks(stages)
        accept = Receiver.accept

        def misshapen(self: Receiver, sender: Sender, frame: WireFrame, now: float) -> None:
            if self._plan.hidden_interval == (32, 64):
                head = stage_pb2.Frame()
                head.CopyFrom(frame.head)
                head.activation.num_tokens += 1
                frame = replace(frame, head=head)
            accept(self, sender, frame, now)

        monkeypatch.setattr(Receiver, "accept", misshapen)
        for worker in stages[0]:
            await worker.forward().write(coordinator_frame(epoch, prefill()))
        async with asyncio.timeout(AT_ONCE_SECONDS):
            failures = [await read_failure(worker, epoch) for worker in workers]
    reported = [failure for failure in failures if failure.code == "frame"]
    assert reported[-1].message.endswith("activation rows: expected 5, got 6")
    assert len(reported) >= 3


async def test_rank_whose_peer_gets_no_step_times_out(
    tiny_model: TinyModel,
) -> None:
    async with live_workers(2) as workers:
        await load_ranks([workers], tiny_model.folder, (4,))
        epoch = await open_epoch_on_ranks([workers], collective_timeout_seconds=0.3)
        await workers[0].forward().write(coordinator_frame(epoch, prefill()))
        failure = await read_failure(workers[0], epoch)
    assert failure.code == "collective_timeout"
    assert "rank 0 waited 0.3 s for rank 1" in failure.message


async def test_rank_whose_epoch_ends_leaves_its_collective(
    tiny_model: TinyModel,
) -> None:
    async with live_workers(2) as workers:
        await load_ranks([workers], tiny_model.folder, (4,))
        epoch = await open_epoch_on_ranks([workers])
        stream = workers[0].forward()
        await stream.write(coordinator_frame(epoch, prefill()))
        await stream.read()  # its credit: the step is with the device, which waits for rank 1
        async with asyncio.timeout(AT_ONCE_SECONDS):
            await workers[0].stub.Unload(stage_pb2.UnloadRequest())


async def _run(stages: Stages, epoch: stage_pb2.EpochId, step: Step) -> stage_pb2.StepResult:
    """Sends one step to stage 0's ranks; returns the result of the last stage's rank 0."""
    for worker in stages[0]:
        await worker.forward().write(coordinator_frame(epoch, step))
    return await next_result(stages[-1][0].results(epoch))
