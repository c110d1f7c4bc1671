"""Frames into steps: assembly from one and several senders, and every rule a frame can break."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protos import stage_pb2
from runtime.errors import FrameError, StaleEpochError, StepGapError, WindowExceededError
from stage_worker import next_stage
from stage_worker.assembly import TORCH_DTYPES
from stage_worker.receiver import Receiver, Sender
from stage_worker.transport import WireFrame
from tests.stage_worker.frames import (
    HIDDEN_SIZE,
    make_frame,
    make_frames,
    make_header,
    receive_plan,
)


def _feed(receiver: Receiver, frames: list[WireFrame], sender: Sender | None = None) -> Sender:
    sender = sender or receiver.attach(frames[0])
    for frame in frames:
        receiver.accept(sender, frame, now=0.0)
    return sender


def _edited(frame: WireFrame, payload: bytes | None = None, **fields: object) -> WireFrame:
    head = stage_pb2.Frame()
    head.CopyFrom(frame.head)
    for name, value in fields.items():
        setattr(head, name, value)
    return WireFrame(head, frame.payload if payload is None else memoryview(payload))


async def test_take_small_step_gives_header_and_tensor() -> None:
    receiver = Receiver(receive_plan())
    hidden_TH = torch.randn(3, HIDDEN_SIZE)

    _feed(receiver, make_frames(make_header(0), hidden_TH))
    received = await receiver.take()

    assert received.header == make_header(0)
    assert received.hidden_TH is not None
    assert torch.equal(received.hidden_TH, hidden_TH)


async def test_take_step_of_many_frames_times_first_and_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(next_stage, "CHUNK_BYTES", 7)
    receiver = Receiver(receive_plan())
    hidden_TH = torch.randn(3, HIDDEN_SIZE)
    frames = make_frames(make_header(0), hidden_TH)
    sender = receiver.attach(frames[0])

    for index, frame in enumerate(frames):
        receiver.accept(sender, frame, now=10.0 + index)
    received = await receiver.take()

    assert (received.begun_at, received.complete_at) == (10.0, 9.0 + len(frames))
    assert received.hidden_TH is not None
    assert torch.equal(received.hidden_TH, hidden_TH)


@pytest.mark.parametrize("dtype", list(TORCH_DTYPES))
async def test_take_every_dtype_keeps_every_bit(dtype: stage_pb2.DType) -> None:
    receiver = Receiver(receive_plan(dtype=dtype))
    hidden_TH = torch.randn(3, HIDDEN_SIZE).to(TORCH_DTYPES[dtype])

    _feed(receiver, make_frames(make_header(0), hidden_TH, dtype=dtype))
    received = await receiver.take()

    assert received.hidden_TH is not None
    assert received.hidden_TH.dtype == hidden_TH.dtype
    assert torch.equal(received.hidden_TH, hidden_TH)


@given(cut=st.integers(1, HIDDEN_SIZE - 1), chunk_bytes=st.integers(1, 200), data=st.data())
async def test_take_two_senders_in_any_order_joins_their_intervals(
    cut: int, chunk_bytes: int, data: st.DataObject
) -> None:
    receiver = Receiver(receive_plan(num_senders=2))
    hidden_TH = torch.randn(5, HIDDEN_SIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(next_stage, "CHUNK_BYTES", chunk_bytes)
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

    assert received.hidden_TH is not None
    assert torch.equal(received.hidden_TH, hidden_TH)
    assert [sender.credits.get_nowait() for sender in senders] == [0, 0]


async def test_take_empty_step_and_first_stage_carry_no_tensor() -> None:
    middle, first = Receiver(receive_plan()), Receiver(receive_plan(hidden_interval=None))

    _feed(middle, [make_frame(0, num_tokens=0)])
    _feed(first, make_frames(make_header(0), None))

    assert (await middle.take()).hidden_TH is None
    assert (await first.take()).hidden_TH is None


async def test_accept_within_window_gives_credits_as_steps_are_taken() -> None:
    receiver = Receiver(receive_plan(window=2))
    sender = _feed(receiver, [make_frame(0), make_frame(1)])

    await receiver.take()
    _feed(receiver, [make_frame(2)], sender)

    assert sender.credits.get_nowait() == 0
    assert sender.credits.empty()


async def test_accept_more_than_window_raises_window_exceeded() -> None:
    receiver = Receiver(receive_plan(window=2))
    sender = _feed(receiver, [make_frame(0), make_frame(1)])

    with pytest.raises(WindowExceededError, match="step 2 exceeds the window of 2"):
        receiver.accept(sender, make_frame(2), now=0.0)


async def test_take_sender_that_reads_no_credits_raises_window_exceeded() -> None:
    receiver = Receiver(receive_plan(window=2))
    sender = _feed(receiver, [make_frame(0), make_frame(1)])
    await receiver.take()
    await receiver.take()
    _feed(receiver, [make_frame(2)], sender)

    with pytest.raises(WindowExceededError):
        await receiver.take()


@pytest.mark.parametrize("number", [0, 2])
async def test_accept_step_out_of_order_raises_step_gap(number: int) -> None:
    receiver = Receiver(receive_plan())
    sender = _feed(receiver, [make_frame(0)])

    with pytest.raises(StepGapError, match=f"expected step 1, got step {number}"):
        receiver.accept(sender, make_frame(number), now=0.0)


async def test_attach_stale_epoch_raises_and_names_both() -> None:
    stale = stage_pb2.EpochId(coordinator_id="coordinator", counter=2)
    frame = make_frame(0)
    frame.head.epoch.CopyFrom(stale)

    with pytest.raises(
        StaleEpochError, match="expected epoch coordinator/3, got epoch coordinator/2"
    ):
        Receiver(receive_plan()).attach(frame)


async def test_accept_epoch_that_changes_raises_stale_epoch() -> None:
    receiver = Receiver(receive_plan())
    sender = _feed(receiver, [make_frame(0)])
    frame = make_frame(1)
    frame.head.epoch.counter = 4

    with pytest.raises(StaleEpochError):
        receiver.accept(sender, frame, now=0.0)


async def test_attach_unknown_or_second_stream_of_a_rank_raises_frame_error() -> None:
    receiver = Receiver(receive_plan())
    receiver.attach(make_frame(0))

    with pytest.raises(FrameError, match="sender rank: expected less than 1, got 1"):
        receiver.attach(_edited(make_frame(0), sender_rank=1))
    with pytest.raises(FrameError, match="streams of sender 0"):
        receiver.attach(make_frame(0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": stage_pb2.DTYPE_FLOAT16}, "dtype: expected DTYPE_FLOAT32, got DTYPE_FLOAT16"),
        ({"dtype": 99}, "dtype: expected DTYPE_FLOAT32, got 99"),
        ({"num_tokens": 4}, "activation rows: expected 3, got 4"),
        ({"num_tokens": 2**32 - 1}, "activation rows: expected 3, got 4294967295"),
        ({"hidden_end": 9}, r"hidden interval: expected within \[0, 8\), got \[0, 9\)"),
        ({"hidden_begin": 8}, "hidden interval"),
        ({"hidden_begin": 9, "hidden_end": 2}, "hidden interval"),
    ],
)
async def test_accept_activation_off_the_plan_raises_before_allocation(
    changes: dict[str, int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "empty", _no_allocation)
    receiver = Receiver(receive_plan())
    frame = make_frame(0)
    for name, value in changes.items():
        setattr(frame.head.activation, name, value)
    sender = receiver.attach(frame)

    with pytest.raises(FrameError, match=message):
        receiver.accept(sender, frame, now=0.0)


def _no_allocation(*_: object, **__: object) -> torch.Tensor:
    raise AssertionError("allocated before the checks were over")


async def test_accept_more_tokens_than_planned_raises_before_allocation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frame = make_frame(0, num_tokens=17)
    monkeypatch.setattr(torch, "empty", _no_allocation)
    receiver = Receiver(receive_plan(max_step_tokens=16))

    with pytest.raises(FrameError, match="tokens of a step: expected at most 16, got 17"):
        _feed(receiver, [frame])


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([_edited(make_frame(0), offset=4)], "payload offset: expected 0, got 4"),
        ([_edited(make_frame(0), b"x" * 97)], "payload bytes: expected 96, got 97"),
        ([_edited(make_frame(0), b"x" * 95)], "payload bytes: expected 96, got 95"),
        ([_edited(make_frame(0), b"x", last=False), make_frame(0)], "header: expected on"),
        ([_edited(make_frame(0, 0), b"x")], "payload bytes: expected 0, got 1"),
    ],
)
async def test_accept_payload_that_does_not_fit_raises_frame_error(
    frames: list[WireFrame], message: str
) -> None:
    with pytest.raises(FrameError, match=message):
        _feed(Receiver(receive_plan()), frames)


async def test_accept_header_missing_or_of_another_step_raises_frame_error() -> None:
    bare, other = make_frame(0), make_frame(0)
    bare.head.ClearField("header")
    other.head.header.step = 5

    with pytest.raises(FrameError, match="header: expected on a step's first frame, got none"):
        _feed(Receiver(receive_plan()), [bare])
    with pytest.raises(FrameError, match="step of the header: expected 0, got 5"):
        _feed(Receiver(receive_plan()), [other])


async def test_accept_activation_missing_or_not_wanted_raises_frame_error() -> None:
    bare = make_frame(0)
    bare.head.ClearField("activation")

    with pytest.raises(FrameError, match="activation: expected True, got False"):
        _feed(Receiver(receive_plan()), [bare])
    with pytest.raises(FrameError, match="activation: expected False, got True"):
        _feed(Receiver(receive_plan(hidden_interval=None)), [make_frame(0)])


async def test_accept_rank_that_changes_raises_frame_error() -> None:
    receiver = Receiver(receive_plan(num_senders=2))
    sender = receiver.attach(make_frame(0))

    with pytest.raises(FrameError, match="sender rank: expected 0, got 1"):
        receiver.accept(sender, _edited(make_frame(0), sender_rank=1), now=0.0)


@pytest.mark.parametrize(
    ("second_interval", "message"),
    [((3, 8), "hidden interval"), ((5, 8), "hidden intervals: expected .0, 8.")],
)
async def test_accept_intervals_that_overlap_or_leave_a_gap_raise_frame_error(
    second_interval: tuple[int, int], message: str
) -> None:
    receiver = Receiver(receive_plan(num_senders=2))
    steps = [
        make_frames(
            make_header(0),
            torch.ones(3, end - begin),
            sender_rank=rank,
            hidden_interval=(begin, end),
        )
        for rank, (begin, end) in enumerate([(0, 4), second_interval])
    ]
    _feed(receiver, steps[0])

    with pytest.raises(FrameError, match=message):
        _feed(receiver, steps[1])


async def test_accept_headers_that_differ_between_senders_raises_frame_error() -> None:
    receiver = Receiver(receive_plan(num_senders=2, hidden_interval=None))
    _feed(receiver, make_frames(make_header(0, 3), None))

    with pytest.raises(FrameError, match="header of step 0 from sender 1"):
        _feed(receiver, make_frames(make_header(0, 4), None, sender_rank=1))
