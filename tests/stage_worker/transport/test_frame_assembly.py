"""Every field of a frame that violates the plan is refused before allocation."""

import pytest
import torch

from protos import stage_pb2
from runtime.errors import FrameError
from stage_worker.transport.frame_codec import WireFrame
from tests.stage_worker.wire import (
    edited,
    feed,
    make_frame,
    make_frames,
    make_header,
    make_receiver,
    receive_plan,
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": stage_pb2.DTYPE_FLOAT16}, "dtype: expected DTYPE_FLOAT32, got DTYPE_FLOAT16"),
        ({"dtype": 99}, "dtype: expected DTYPE_FLOAT32, got 99"),
        ({"num_tokens": 4}, "activation rows: expected 3, got 4"),
        ({"num_tokens": 2**32 - 1}, "activation rows: expected 3, got 4294967295"),
        ({"hidden_end": 9}, r"interval of sender 0: expected \[0, 8\), got \[0, 9\)"),
        ({"hidden_end": 7}, r"interval of sender 0: expected \[0, 8\), got \[0, 7\)"),
        ({"hidden_begin": 8}, "hidden interval"),
        ({"hidden_begin": 9, "hidden_end": 2}, "hidden interval"),
    ],
)
async def test_accept_activation_that_violates_the_plan_raises_before_allocation(
    changes: dict[str, int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "empty", _no_allocation)
    receiver = make_receiver(receive_plan())
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
    receiver = make_receiver(receive_plan(max_step_tokens=16))

    with pytest.raises(FrameError, match="tokens of a step: expected at most 16, got 17"):
        feed(receiver, [frame])


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([edited(make_frame(0), offset=4)], "payload offset: expected 0, got 4"),
        ([edited(make_frame(0), b"x" * 97)], "payload bytes: expected 96, got 97"),
        ([edited(make_frame(0), b"x" * 95)], "payload bytes: expected 96, got 95"),
        ([edited(make_frame(0), b"x", last=False), make_frame(0)], "header: expected on"),
        ([edited(make_frame(0, 0), b"x")], "payload bytes: expected 0, got 1"),
    ],
)
async def test_accept_payload_that_does_not_fit_raises_frame_error(
    frames: list[WireFrame], message: str
) -> None:
    with pytest.raises(FrameError, match=message):
        feed(make_receiver(receive_plan()), frames)


async def test_accept_header_missing_or_of_another_step_raises_frame_error() -> None:
    bare, other = make_frame(0), make_frame(0)
    bare.head.ClearField("header")
    other.head.header.step = 5

    with pytest.raises(FrameError, match="header: expected on a step's first frame, got none"):
        feed(make_receiver(receive_plan()), [bare])
    with pytest.raises(FrameError, match="step of the header: expected 0, got 5"):
        feed(make_receiver(receive_plan()), [other])


async def test_accept_activation_missing_or_unexpected_raises_frame_error() -> None:
    bare = make_frame(0)
    bare.head.ClearField("activation")

    with pytest.raises(FrameError, match="activation: expected True, got False"):
        feed(make_receiver(receive_plan()), [bare])
    with pytest.raises(FrameError, match="activation: expected False, got True"):
        feed(make_receiver(receive_plan(hidden_interval=None)), [make_frame(0)])


@pytest.mark.parametrize("second_interval", [(3, 8), (5, 8), (0, 4)])
async def test_accept_interval_of_another_sender_or_a_gap_raises_frame_error(
    second_interval: tuple[int, int],
) -> None:
    receiver = make_receiver(receive_plan(senders={0: (0, 4), 1: (4, 8)}))
    steps = [
        make_frames(
            make_header(0),
            torch.ones(3, end - begin),
            sender_rank=rank,
            hidden_interval=(begin, end),
        )
        for rank, (begin, end) in enumerate([(0, 4), second_interval])
    ]
    feed(receiver, steps[0])

    with pytest.raises(FrameError, match=r"interval of sender 1: expected \[4, 8\)"):
        feed(receiver, steps[1])


async def test_accept_headers_that_differ_between_senders_raises_frame_error() -> None:
    receiver = make_receiver(receive_plan(senders={0: None, 1: None}, hidden_interval=None))
    feed(receiver, make_frames(make_header(0, 3), None))

    expected = (
        r"header of step 0 from sender 1: expected that of .* digest \w{16}, got digest \w{16}$"
    )
    with pytest.raises(FrameError, match=expected):
        feed(receiver, make_frames(make_header(0, 4), None, sender_rank=1))
