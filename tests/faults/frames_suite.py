"""Frames that break a rule in a stream that was let in: a gap, a copy, another epoch, a forgery.

The test is the coordinator of one worker process. What breaks a rule ends the epoch by a typed
error; the worker lives on, holds nothing, and computes the same tokens in the next epoch.

`make test-faults` runs it; its name keeps it out of other runs, because it takes minutes.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count

import pytest

from protos import stage_pb2, stage_pb2_grpc
from runtime.rpc import channels
from tests.integration.processes import RunningCommand, new_address, running_command
from tests.integration.tiny_chat import NUM_LAYERS, TinyChat
from tests.stage_worker.live_workers import (
    LiveWorker,
    coordinator_frame,
    make_assignments,
    make_opening,
    next_result,
    prefill,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# Epochs of the worker, which outlives a test.
COUNTERS = count(1)
Change = Callable[[stage_pb2.Frame], None]


@pytest.fixture(scope="module")
def process(tiny_chat: TinyChat) -> Iterator[tuple[RunningCommand, str]]:
    """A worker that nobody coordinates, and where it listens."""
    address = new_address()
    with running_command("worker", "--coordinator", "127.0.0.1:1", "--listen", address) as command:
        command.log.wait_for("not_joined")
        yield command, address


@pytest.fixture
async def worker(
    process: tuple[RunningCommand, str], tiny_chat: TinyChat
) -> AsyncIterator[LiveWorker]:
    """The same with the whole model; after the test it answers as it did before."""
    command, address = process
    async with channels.dial(address) as channel:
        worker = LiveWorker(address, stage_pb2_grpc.StageStub(channel))
        (assignment,) = make_assignments(tiny_chat.model.folder, (NUM_LAYERS,))
        await worker.load(assignment)
        expected = await first_token(worker)
        yield worker
        assert await first_token(worker) == expected
        assert command.process.poll() is None


async def first_token(worker: LiveWorker) -> int:
    """What a new epoch samples after the same prompt."""
    opening = make_opening(next(COUNTERS))
    await worker.open_epoch(opening)
    stream, results = worker.forward(), worker.results(opening.epoch)
    await stream.write(coordinator_frame(opening.epoch, prefill()))
    (sampled,) = (await next_result(results)).sampled
    for call in (stream, results):
        call.cancel()
    return sampled.token_id


def later_step(frame: stage_pb2.Frame) -> None:
    """A gap."""
    frame.step = frame.header.step = 3


def earlier_step(frame: stage_pb2.Frame) -> None:
    """A copy of what was executed."""
    frame.step = frame.header.step = 0


def earlier_epoch(frame: stage_pb2.Frame) -> None:
    """What an epoch before would have sent."""
    frame.epoch.counter -= 1


def other_coordinator(frame: stage_pb2.Frame) -> None:
    """What another coordinator would have sent."""
    frame.epoch.coordinator_id = "another"


def other_rank(frame: stage_pb2.Frame) -> None:
    """Another sender in the same stream."""
    frame.sender_rank = 1


def header_of_another_step(frame: stage_pb2.Frame) -> None:
    """The frame is the next step's, the header is not."""
    frame.header.step = 7


def no_header(frame: stage_pb2.Frame) -> None:
    """A first frame without what must be on it."""
    frame.ClearField("header")


def huge_activation(frame: stage_pb2.Frame) -> None:
    """A tensor that nobody has room for, where none belongs."""
    frame.activation.num_tokens = frame.activation.hidden_end = 2**31


def payload_for_the_first_stage(frame: stage_pb2.Frame) -> None:
    """Bytes where only a header belongs."""
    frame.payload = bytes(1 << 20)


def token_out_of_vocabulary(frame: stage_pb2.Frame) -> None:
    """An index past the embedding's end."""
    frame.header.chunks[0].token_ids[0] = 2**31 - 1


def block_out_of_cache(frame: stage_pb2.Frame) -> None:
    """An index past the KV cache's end."""
    frame.header.chunks[0].new_block_ids[0] = 10**6


def position_that_skips(frame: stage_pb2.Frame) -> None:
    """A sequence that does not begin at its beginning."""
    frame.header.chunks[0].position = 4


def slot_that_is_open(frame: stage_pb2.Frame) -> None:
    """The slot of the step before once more."""
    frame.header.opened_slots[0].slot = frame.header.chunks[0].slot = 0


def too_many_tokens(frame: stage_pb2.Frame) -> None:
    """More than the plan lets a step carry."""
    frame.header.chunks[0].token_ids.extend([5] * 10_000)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (later_step, "step_gap"),
        (earlier_step, "step_gap"),
        (earlier_epoch, "stale_epoch"),
        (other_coordinator, "stale_epoch"),
        (other_rank, "frame"),
        (header_of_another_step, "frame"),
        (no_header, "frame"),
        (huge_activation, "frame"),
        (payload_for_the_first_stage, "frame"),
        (token_out_of_vocabulary, "token_out_of_vocabulary"),
        (block_out_of_cache, "block"),
        (position_that_skips, "position"),
        (slot_that_is_open, "slot"),
        (too_many_tokens, "frame"),
    ],
    ids=lambda value: value.__name__ if callable(value) else value,
)
async def test_frame_that_breaks_a_rule_ends_its_epoch_and_nothing_else(
    change: Change, code: str, worker: LiveWorker
) -> None:
    opening = make_opening(next(COUNTERS))
    await worker.open_epoch(opening)
    stream, results = worker.forward(), worker.results(opening.epoch)
    await stream.write(coordinator_frame(opening.epoch, prefill()))
    assert (await next_result(results)).sampled
    frame = coordinator_frame(opening.epoch, prefill(1, slot=1, block=1))
    change(frame)
    await stream.write(frame)
    assert (await next_result(results)).failure.code == code
    state = await worker.state()
    assert (state.num_slots_used, state.num_kv_blocks_used) == (0, 0)
