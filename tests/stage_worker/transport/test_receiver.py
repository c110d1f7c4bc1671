"""Assembly of frames into steps, from one and several senders; their order and window."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protos import stage_pb2
from runtime.errors import FrameError, StaleEpochError, StepGapError, WindowExceededError
from stage_worker.transport import stage_sender
from stage_worker.transport.frame_assembly import TORCH_DTYPES
from tests.stage_worker.wire import (
    HIDDEN_SIZE,
    edited,
    feed,
    make_frame,
    make_frames,
    make_header,
    make_receiver,
    receive_plan,
)


async def test_take_small_step_gives_header_and_tensor() -> None:
    receiver = make_receiver(receive_plan())
    hidden_TH = torch.randn(3, HIDDEN_SIZE)

    feed(receiver, make_frames(make_header(0), hidden_TH))
    received = await receiver.take()

    assert received.header == make_header(0)
    assert received.hidden is not None
    assert torch.equal(received.hidden.wait(), hidden_TH)


async def test_take_step_of_many_frames_times_first_and_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage_sender, "CHUNK_BYTES", 7)
    receiver = make_receiver(receive_plan())
    hidden_TH = torch.randn(3, HIDDEN_SIZE)
    frames = make_frames(make_header(0), hidden_TH)
    sender = receiver.attach(frames[0])

    for index, frame in enumerate(frames):
        receiver.accept(sender, frame, now=10.0 + index)
    received = await receiver.take()

    assert (received.begun_at, received.complete_at) == (10.0, 9.0 + len(frames))
    assert received.hidden is not None
    assert torch.equal(received.hidden.wait(), hidden_TH)


@pytest.mark.parametrize("dtype", list(TORCH_DTYPES))
async def test_take_every_dtype_keeps_every_bit(dtype: stage_pb2.DType) -> None:
    receiver = make_receiver(receive_plan(dtype=dtype))
    hidden_TH = torch.randn(3, HIDDEN_SIZE).to(TORCH_DTYPES[dtype])

    feed(receiver, make_frames(make_header(0), hidden_TH, dtype=dtype))
    received = await receiver.take()

    assert received.hidden is not None
    assert received.hidden.wait().dtype == hidden_TH.dtype
    assert torch.equal(received.hidden.wait(), hidden_TH)


@given(cut=st.integers(1, HIDDEN_SIZE - 1), chunk_bytes=st.integers(1, 200), data=st.data())
async def test_take_two_senders_in_any_order_joins_their_intervals(
    cut: int, chunk_bytes: int, data: st.DataObject
) -> None:
    receiver = make_receiver(receive_plan(senders={0: (0, cut), 1: (cut, HIDDEN_SIZE)}))
    hidden_TH = torch.randn(5, HIDDEN_SIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_sender, "CHUNK_BYTES", chunk_bytes)
        queues = [
            make_frames(
                make_header(0, 5),
                hidden_TH[:, begin:end].contiguous(),
                sender_rank=rank,
                hidden_interval=(begin, end),
            )
            for rank, (begin, end) in enumerate([(0, cut), (cut, HIDDEN_SIZE)])
        ]
    senders = [receiver.attach(frames[0]) for frames in queues]

    while any(queues):
        rank = data.draw(st.sampled_from([rank for rank in (0, 1) if queues[rank]]))
        receiver.accept(senders[rank], queues[rank].pop(0), now=0.0)
    received = await receiver.take()
    receiver.grant(0)

    assert received.hidden is not None
    assert torch.equal(received.hidden.wait(), hidden_TH)
    assert [sender.credits.get_nowait() for sender in senders] == [0, 0]


async def test_take_empty_step_and_first_stage_carry_no_tensor() -> None:
    middle, first = make_receiver(receive_plan()), make_receiver(receive_plan(hidden_interval=None))

    feed(middle, [make_frame(0, num_tokens=0)])
    feed(first, make_frames(make_header(0), None))

    assert (await middle.take()).hidden is None
    assert (await first.take()).hidden is None


async def test_accept_within_window_continues_as_credits_are_granted() -> None:
    receiver = make_receiver(receive_plan(window=2))
    sender = feed(receiver, [make_frame(0), make_frame(1)])

    await receiver.take()
    receiver.grant(0)
    feed(receiver, [make_frame(2)], sender)

    assert sender.credits.get_nowait() == 0
    assert sender.credits.empty()


async def test_accept_more_than_window_raises_window_exceeded() -> None:
    receiver = make_receiver(receive_plan(window=2))
    sender = feed(receiver, [make_frame(0), make_frame(1)])

    with pytest.raises(WindowExceededError, match="step 2 exceeds the window of 2"):
        receiver.accept(sender, make_frame(2), now=0.0)


async def test_grant_sender_that_reads_no_credits_raises_window_exceeded() -> None:
    receiver = make_receiver(receive_plan(window=2))
    feed(receiver, [make_frame(0), make_frame(1)])
    receiver.grant(0)
    receiver.grant(1)

    with pytest.raises(WindowExceededError):
        receiver.grant(2)


@pytest.mark.parametrize("number", [0, 2])
async def test_accept_step_out_of_order_raises_step_gap(number: int) -> None:
    receiver = make_receiver(receive_plan())
    sender = feed(receiver, [make_frame(0)])

    with pytest.raises(StepGapError, match=f"expected step 1, got step {number}"):
        receiver.accept(sender, make_frame(number), now=0.0)


async def test_attach_stale_epoch_raises_and_names_both() -> None:
    stale = stage_pb2.EpochId(coordinator_id="coordinator", counter=2)
    frame = make_frame(0)
    frame.head.epoch.CopyFrom(stale)

    with pytest.raises(
        StaleEpochError, match="expected epoch coordinator/3, got epoch coordinator/2"
    ):
        make_receiver(receive_plan()).attach(frame)


async def test_accept_epoch_that_changes_raises_stale_epoch() -> None:
    receiver = make_receiver(receive_plan())
    sender = feed(receiver, [make_frame(0)])
    frame = make_frame(1)
    frame.head.epoch.counter = 4

    with pytest.raises(StaleEpochError):
        receiver.accept(sender, frame, now=0.0)


async def test_attach_unknown_or_second_stream_of_a_rank_raises_frame_error() -> None:
    receiver = make_receiver(receive_plan())
    receiver.attach(make_frame(0))

    with pytest.raises(FrameError, match="sender rank: expected one of 0, got 1"):
        receiver.attach(edited(make_frame(0), sender_rank=1))
    with pytest.raises(FrameError, match="streams of sender 0"):
        receiver.attach(make_frame(0))


async def test_accept_rank_that_changes_raises_frame_error() -> None:
    receiver = make_receiver(receive_plan(senders={0: (0, HIDDEN_SIZE), 1: None}))
    sender = receiver.attach(make_frame(0))

    with pytest.raises(FrameError, match="sender rank: expected 0, got 1"):
        receiver.accept(sender, edited(make_frame(0), sender_rank=1), now=0.0)
