"""The link to the next stage: chunks, credits and the end of the stream."""

import asyncio
from typing import Any

import pytest
import torch

from protos import stage_pb2
from runtime.errors import EpochEndedError, FrameError, StepGapError, WindowExceededError
from runtime.rpc import channels
from stage_worker.transport import stage_sender
from stage_worker.transport.frame_codec import ForwardContext, WireFrame, add_forward_handler
from stage_worker.transport.stage_sender import StageSender, step_frames
from tests.stage_worker.wire import EPOCH, HIDDEN_SIZE, link_plan, linked, make_header, next_frame


def test_step_frames_small_step_is_one_frame() -> None:
    (frame,) = step_frames(link_plan(), make_header(4), torch.ones(3, HIDDEN_SIZE))

    assert frame.head == stage_pb2.Frame(
        epoch=EPOCH,
        step=4,
        header=make_header(4),
        activation=stage_pb2.ActivationSpec(
            dtype=stage_pb2.DTYPE_FLOAT32, num_tokens=3, hidden_end=HIDDEN_SIZE
        ),
        last=True,
    )
    assert frame.payload.nbytes == 3 * HIDDEN_SIZE * 4


@pytest.mark.parametrize(("chunk_bytes", "offsets"), [(48, [0, 48]), (40, [0, 40, 80])])
def test_step_frames_large_step_is_chunked_with_the_header_first(
    chunk_bytes: int, offsets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_sender, "CHUNK_BYTES", chunk_bytes)
    frames = list(step_frames(link_plan(), make_header(0), torch.ones(3, HIDDEN_SIZE)))

    assert [frame.head.offset for frame in frames] == offsets
    assert [frame.head.last for frame in frames] == [False] * (len(frames) - 1) + [True]
    assert [frame.head.HasField("header") for frame in frames] == [
        offset == 0 for offset in offsets
    ]
    assert sum(frame.payload.nbytes for frame in frames) == 96


def test_step_frames_without_activation_carries_the_header_alone() -> None:
    (frame,) = step_frames(link_plan(), make_header(0, num_tokens=0), None)

    assert frame.head.last
    assert not frame.head.HasField("activation")
    assert not frame.payload.nbytes


def test_step_frames_payload_is_the_tensors_own_memory() -> None:
    hidden_TH = torch.zeros(3, HIDDEN_SIZE, dtype=torch.bfloat16)
    (frame,) = step_frames(link_plan(), make_header(0), hidden_TH)

    hidden_TH.fill_(1.0)

    assert bytes(frame.payload[:2]) == b"\x80\x3f"


async def test_send_beyond_the_window_waits_for_a_credit() -> None:
    received: asyncio.Queue[WireFrame] = asyncio.Queue()
    credit_step = asyncio.Event()

    async def handler(context: ForwardContext) -> None:
        for _ in range(2):
            received.put_nowait(await next_frame(context))
        await credit_step.wait()
        await context.write(stage_pb2.Credit(step=0))
        received.put_nowait(await next_frame(context))

    async with linked(handler) as link, asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(link.read_credits())
        for number in range(2):
            await link.send(make_header(number), None)
        third = tasks.create_task(link.send(make_header(2), None))
        assert [(await received.get()).head.step for _ in range(2)] == [0, 1]
        assert not third.done()

        credit_step.set()
        sent = await third

        assert (sent.num_frames, (await received.get()).head.step) == (1, 2)
        reading.cancel()


async def test_read_credits_out_of_order_raises_frame_error() -> None:
    async def handler(context: ForwardContext) -> None:
        await context.write(stage_pb2.Credit(step=1))
        await context.read()

    async with linked(handler) as link:
        with pytest.raises(FrameError, match="step of a credit: expected 0, got 1"):
            await link.read_credits()


async def test_read_credits_for_a_step_that_was_not_sent_is_refused() -> None:
    async def handler(context: ForwardContext) -> None:
        await context.write(stage_pb2.Credit(step=0))
        await context.read()

    async with linked(handler) as link:
        with pytest.raises(WindowExceededError, match="step 0"):
            await link.read_credits()


async def test_read_credits_peer_fails_raises_its_reason() -> None:
    async def handler(context: ForwardContext) -> None:
        await context.read()
        raise StepGapError(expected=1, actual=2)

    async with linked(handler) as link:
        await link.send(make_header(0), None)
        with pytest.raises(EpochEndedError, match="expected step 1, got step 2") as caught:
            await link.read_credits()

    assert caught.value.cause == "step_gap"


async def test_read_credits_peer_closes_raises_epoch_ended() -> None:
    async def handler(context: ForwardContext) -> None:
        await context.read()

    async with linked(handler) as link:
        await link.send(make_header(0), None)
        with pytest.raises(EpochEndedError, match="closed the stream"):
            await link.read_credits()
        with pytest.raises(EpochEndedError):
            await link.send(make_header(1), None)


async def test_connect_without_a_peer_raises_and_closes() -> None:
    with pytest.raises(EpochEndedError, match=r"next stage 127\.0\.0\.1:1"):
        async with StageSender(link_plan("127.0.0.1:1")):
            raise AssertionError("connected to nobody")


async def test_connect_silent_peer_raises_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_sender, "_CONNECT_SECONDS", 0.05)

    async def silent(_: Any, context: ForwardContext) -> None:
        await context.read()

    server = channels.make_server()
    add_forward_handler(server, silent)
    address = await channels.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        with pytest.raises(EpochEndedError, match="no answer"):
            async with StageSender(link_plan(address)):
                raise AssertionError("nobody took the stream")
    finally:
        await server.stop(grace=None)
