"""Ten thousand random frames: each is accepted or raises a typed error, in bounded memory."""

import random
from unittest.mock import patch

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.errors import StagemeshError
from stage_worker.device.host_device_copy import HostDeviceCopier
from stage_worker.transport.frame_assembly import ReceivePlan, empty_hidden
from stage_worker.transport.frame_codec import WireFrame, decode_frame, encode_frame
from tests.stage_worker.wire import HIDDEN_SIZE, make_frame, make_receiver, receive_plan

PLAN = receive_plan()
# The most that the plan lets a sender have outstanding.
MAX_BYTES = PLAN.window * PLAN.max_step_tokens * HIDDEN_SIZE * 4
VALID = tuple(encode_frame(make_frame(step, tokens)) for step in (0, 1) for tokens in (0, 3, 16))
FRAMES_AN_EXAMPLE = 20


def corrupted(data: bytes, chance: random.Random) -> bytes:
    """A frame with some bytes changed, removed or added."""
    corrupted = bytearray(data)
    for _ in range(chance.randint(0, 4)):
        place = chance.randrange(len(corrupted) + 1)
        match chance.randrange(4):
            case 0:
                corrupted[place : place + 1] = chance.randbytes(1)
            case 1:
                del corrupted[place : place + chance.randint(1, 8)]
            case 2:
                corrupted[place:place] = chance.randbytes(chance.randint(1, 12))
            case _:
                # The largest possible length or number.
                corrupted[place:place] = b"\xff\xff\xff\xff\x0f"
    return bytes(corrupted)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**64 - 1), st.binary(max_size=64))
def test_random_frames_are_refused_or_accepted_within_the_memory_limit(
    seed: int, garbage: bytes
) -> None:
    # 500 examples of 20 frames each.
    chance, reserved = random.Random(seed), 0

    def counted(
        num_tokens: int, plan: ReceivePlan, transfers: HostDeviceCopier
    ) -> torch.Tensor | None:
        nonlocal reserved
        hidden_TH = empty_hidden(num_tokens, plan, transfers)
        reserved += 0 if hidden_TH is None else hidden_TH.nbytes
        return hidden_TH

    with patch("stage_worker.transport.receiver.empty_hidden", counted):
        receiver = make_receiver(PLAN)
        sender = None
        for index in range(FRAMES_AN_EXAMPLE):
            data = garbage if index == 0 else corrupted(chance.choice(VALID), chance)
            try:
                frame = decode_frame(data)
                _check_views(frame, data)
                sender = sender or receiver.attach(frame)
                receiver.accept(sender, frame, now=0.0)
            except StagemeshError:
                continue
    assert reserved <= MAX_BYTES


def _check_views(frame: WireFrame, data: bytes) -> None:
    """A decoded frame contains only bytes that were received."""
    assert frame.payload.nbytes <= len(data)
    assert frame.head.ByteSize() <= 4 * len(data) + 64
