"""`--overlap` changes neither the bytes on the wire nor the tokens."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import grpc.aio
import pytest

from protos import stage_pb2
from runtime.protocol.step import SequenceChunk, SlotOpening, SlotSampling, Step
from stage_worker.transport.frame_codec import WireFrame
from stage_worker.transport.receiver import Receiver, Sender
from tests.stage_worker.live_workers import (
    LiveWorker,
    RanksPlan,
    Stages,
    coordinator_frame,
    live_workers,
    load_ranks,
    make_opening,
    next_result,
    open_epoch_on_ranks,
)
from tests.tiny_models import TinyModel, make_tiny_llama

SAMPLING = SlotSampling(num_logprobs=2)

# Two prompts, the longer one in chunks, then decodes of both.
STEPS = (
    Step(
        0,
        opened_slots=(SlotOpening(0, SAMPLING), SlotOpening(1, SAMPLING)),
        chunks=(
            SequenceChunk(0, 0, (5, 17, 250, 3, 9), (0,), sample=True),
            SequenceChunk(1, 0, (7, 8, 11), (1,)),
        ),
    ),
    Step(
        1,
        chunks=(
            SequenceChunk(0, 5, (40,), sample=True),
            SequenceChunk(1, 3, tuple(range(60, 75)), (2, 3), sample=True),
        ),
    ),
    *(
        Step(
            2 + number,
            chunks=(
                SequenceChunk(0, 6 + number, (90 + number,), (4,) if number == 2 else (), True),
                SequenceChunk(1, 18 + number, (30 + number,), sample=True),
            ),
        )
        for number in range(4)
    ),
    Step(6, released_slots=(0, 1)),
)

# A receiver's interval of the hidden dimension, the sending rank and the step.
Lane = tuple[tuple[int, int] | None, int, int]


class Wire:
    """Everything that receivers got: bytes of activations, and digests of the contents."""

    def __init__(self) -> None:
        self.num_bytes: Counter[Lane] = Counter()
        self._hashes: dict[Lane, Any] = {}

    def take(self, interval: tuple[int, int] | None, sender: Sender, frame: WireFrame) -> None:
        head = stage_pb2.Frame()
        head.CopyFrom(frame.head)
        head.ClearField("epoch")
        link = (interval, sender.rank, frame.head.step)
        self.num_bytes[link] += frame.payload.nbytes
        content = self._hashes.setdefault(link, sha256())
        content.update(head.SerializeToString(deterministic=True))
        content.update(frame.payload)

    def digests(self) -> dict[Lane, str]:
        return {link: content.hexdigest() for link, content in self._hashes.items()}


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_llama(tmp_path_factory.mktemp("model"), "untied_mha_bias")


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch) -> list[Wire]:
    """Records of what receivers get; the last one is that of the current run."""
    recorded: list[Wire] = []
    accept = Receiver.accept

    def recording(self: Receiver, sender: Sender, frame: WireFrame, now: float) -> None:
        recorded[-1].take(self._plan.hidden_interval, sender, frame)
        accept(self, sender, frame, now)

    monkeypatch.setattr(Receiver, "accept", recording)
    return recorded


async def _run(
    stages: Stages, counter: int, overlap: stage_pb2.Overlap
) -> list[tuple[int, int, int]]:
    """Runs all steps in a new epoch; returns step, slot and id of every sampled token."""
    epoch = await open_epoch_on_ranks(stages, counter, overlap=overlap)
    results = stages[-1][0].results(epoch)
    sending = asyncio.gather(*(_send(worker, epoch) for worker in stages[0]))
    received = [await next_result(results) for _ in STEPS]
    await sending
    return [(each.step, token.slot, token.token_id) for each in received for token in each.sampled]


async def _send(worker: LiveWorker, epoch: stage_pb2.EpochId) -> None:
    """Sends one step for each credit, as the smallest window requires."""
    stream = worker.forward()
    for step in STEPS:
        await stream.write(coordinator_frame(epoch, step))
        assert isinstance(await stream.read(), stage_pb2.Credit)


@pytest.mark.parametrize("tp_sizes", [(1, 1), (2, 2), (2, 3)], ids=str)
async def test_overlap_on_and_off_send_the_same_bytes_and_sample_the_same_tokens(
    tp_sizes: Sequence[int], tiny_model: TinyModel, wires: list[Wire]
) -> None:
    plan = RanksPlan((2, 2), tuple(tp_sizes))
    async with live_workers(plan.num_workers) as workers:
        stages = plan.arrange(workers)
        await load_ranks(stages, tiny_model.folder, plan.layer_counts)
        tokens = []
        modes = (stage_pb2.OVERLAP_OFF, stage_pb2.OVERLAP_AUTO, stage_pb2.OVERLAP_ON)
        for counter, overlap in enumerate(modes, 1):
            wires.append(Wire())
            tokens.append(await _run(stages, counter, overlap))
    off, auto, on = wires
    assert len(tokens[0]) == 11
    assert tokens == [tokens[0]] * 3
    assert off.digests() == auto.digests()
    # Slices change only the last bits of the ranks' results.
    assert off.num_bytes == on.num_bytes
    if max(tp_sizes) == 1:
        assert off.digests() == on.digests()
    sent = [size for (interval, _, _), size in off.num_bytes.items() if interval is not None]
    assert sum(sent) == sum(step.num_tokens for step in STEPS) * 64 * 4


async def test_open_epoch_unknown_overlap_is_refused(tiny_model: TinyModel) -> None:
    async with live_workers(1) as [worker]:
        await load_ranks([[worker]], tiny_model.folder, (4,))
        opening = make_opening(1)
        opening.overlap = 9  # type: ignore[assignment]
        with pytest.raises(grpc.aio.AioRpcError, match="overlap: 9 is not known"):
            await worker.open_epoch(opening)
