"""Sequences from admission to end, on a mesh model that checks every step."""

import pytest

from runtime.errors import (
    FrameError,
    NeverFitsError,
    PromptTooLongError,
    QueueFullError,
    StepGapError,
)
from runtime.protocol.inference_types import FinishReason
from runtime.protocol.step import SampledToken, SequenceChunk, SlotOpening, SlotSampling, Step
from scheduler import FixedPolicy, Scheduler
from tests.scheduler.mesh_model import Mesh, answer, make_limits, make_request
from tests.scheduler.stage_model import VOCAB_SIZE


def test_schedule_nothing_to_do_returns_none() -> None:
    mesh = Mesh(make_limits())
    assert mesh.send() is None
    assert not mesh.scheduler.has_work


def test_schedule_one_request_makes_prefill_decode_and_release_steps() -> None:
    scheduler = Scheduler(make_limits(), FixedPolicy(16))
    scheduler.add(make_request(5, prompt=[1, 2, 3, 4], max_tokens=2))
    prefill = scheduler.schedule(now=0.0)
    assert prefill == Step(
        number=0,
        opened_slots=(SlotOpening(0, SlotSampling(seed=5)),),
        chunks=(SequenceChunk(0, 0, (1, 2, 3, 4), new_block_ids=(0, 1), sample=True),),
    )
    assert scheduler.sequence_in_slot(0) == 5
    (first,) = scheduler.update(0, [SampledToken(0, 9)], now=0.0)
    assert (first.sequence_id, first.token.token_id, first.finish_reason) == (5, 9, None)
    decode = scheduler.schedule(now=0.0)
    assert decode == Step(number=1, chunks=(SequenceChunk(0, 4, (9,), sample=True),))
    (last,) = scheduler.update(1, [SampledToken(0, 8)], now=0.0)
    assert last.finish_reason is FinishReason.LENGTH
    assert scheduler.has_work
    assert scheduler.schedule(now=0.0) == Step(number=2, released_slots=(0,))
    assert scheduler.update(2, [], now=0.0) == ()
    assert not scheduler.has_work
    scheduler.check_integrity()


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_sequence_reaching_max_tokens_ends_with_length(max_tokens: int) -> None:
    mesh = Mesh(make_limits())
    mesh.add(make_request(1, max_tokens=max_tokens))
    mesh.finish()
    assert len(mesh.tokens[1]) == max_tokens
    assert mesh.finish_reasons[1] is FinishReason.LENGTH


def test_sequence_reaching_max_model_len_ends_with_length() -> None:
    mesh = Mesh(make_limits(max_model_len=10))
    mesh.add(make_request(1, prompt=7, max_tokens=50))
    mesh.finish()
    assert len(mesh.tokens[1]) == 3
    assert mesh.finish_reasons[1] is FinishReason.LENGTH


def test_sequence_sampling_a_stop_id_reports_it_and_ends_with_stop() -> None:
    first, *_ = answer(make_request(1), max_model_len=64)[0]
    mesh = Mesh(make_limits())
    mesh.add(make_request(1, max_tokens=9, stop_ids=frozenset({first})))
    mesh.finish()
    assert mesh.tokens[1] == [first]
    assert mesh.finish_reasons[1] is FinishReason.STOP


def test_sequence_sampling_a_stop_id_last_ends_with_stop() -> None:
    mesh = Mesh(make_limits())
    mesh.add(make_request(1, max_tokens=1, stop_ids=frozenset(range(VOCAB_SIZE))))
    mesh.finish()
    assert mesh.finish_reasons[1] is FinishReason.STOP


def test_add_prompt_as_long_as_the_context_is_refused_with_the_numbers() -> None:
    mesh = Mesh(make_limits(max_model_len=10))
    with pytest.raises(PromptTooLongError, match="has 10 tokens, but at most 9 fit"):
        mesh.add(make_request(1, prompt=10, max_tokens=1))
    assert not mesh.scheduler.has_work


def test_add_request_larger_than_the_cache_is_refused_with_the_numbers() -> None:
    mesh = Mesh(make_limits(num_blocks=4, block_size=4))
    with pytest.raises(NeverFitsError, match="needs 5 KV blocks but the cache has 4"):
        mesh.add(make_request(1, prompt=10, max_tokens=8))
    assert not mesh.scheduler.has_work


@pytest.mark.parametrize(("num_prompt_tokens", "max_tokens"), [(10, 7), (16, 1)])
def test_add_request_that_fills_the_whole_cache_runs_to_its_end(
    num_prompt_tokens: int, max_tokens: int
) -> None:
    mesh = Mesh(make_limits(num_blocks=4, block_size=4))
    mesh.add(make_request(1, num_prompt_tokens, max_tokens))
    mesh.finish()


def test_add_beyond_max_waiting_is_refused_until_one_runs() -> None:
    mesh = Mesh(make_limits(max_waiting=1))
    mesh.add(make_request(1))
    with pytest.raises(QueueFullError, match=r"1 requests wait already \(limit 1\)"):
        mesh.add(make_request(2))
    mesh.send()
    mesh.add(make_request(2))
    mesh.finish()


def test_update_for_a_step_out_of_order_is_refused_and_changes_nothing() -> None:
    mesh = Mesh(make_limits(max_step_tokens=4))
    mesh.add(make_request(1, prompt=8))
    mesh.send_all()
    with pytest.raises(StepGapError) as error:
        mesh.scheduler.update(1, [SampledToken(0, 0)], now=0.0)
    assert (error.value.expected, error.value.actual) == (0, 1)
    mesh.finish()


def test_update_with_nothing_in_flight_is_refused() -> None:
    with pytest.raises(StepGapError):
        Mesh(make_limits()).scheduler.update(0, [], now=0.0)


@pytest.mark.parametrize("slots", [(), (1,), (0, 0), (0, 1)])
def test_update_with_tokens_not_asked_for_is_refused_and_changes_nothing(
    slots: tuple[int, ...],
) -> None:
    mesh = Mesh(make_limits())
    mesh.add(make_request(1))
    mesh.send()
    with pytest.raises(FrameError, match="slots sampled by step 0"):
        mesh.scheduler.update(0, [SampledToken(slot, 0) for slot in slots], now=0.0)
    mesh.finish()


def test_cancel_waiting_sequence_leaves_nothing_to_send() -> None:
    mesh = Mesh(make_limits())
    mesh.add(make_request(1))
    mesh.cancel(1)
    assert not mesh.scheduler.has_work
    assert mesh.send() is None


def test_cancel_unknown_or_finished_sequence_is_ignored() -> None:
    mesh = Mesh(make_limits())
    mesh.scheduler.cancel(7)
    mesh.add(make_request(1))
    mesh.finish()
    mesh.scheduler.cancel(1)
    mesh.check_idle()


def test_cancel_with_chunks_in_flight_lets_the_next_step_reuse_slot_and_blocks() -> None:
    """Case 6: sglang#29405, vllm#6586: an abort misses microbatches in flight."""
    mesh = Mesh(
        make_limits(num_blocks=3, max_sequences=1, max_step_tokens=4, num_steps_in_flight=3)
    )
    mesh.add(make_request(1, prompt=8, max_tokens=4))
    mesh.add(make_request(2, prompt=8, max_tokens=4))
    first, second = mesh.send_all()
    assert [chunk.position for step in (first, second) for chunk in step.chunks] == [0, 4]
    mesh.cancel(1)
    third = mesh.send()
    assert third is not None
    assert third.released_slots == (0,)
    assert [opening.slot for opening in third.opened_slots] == [0]
    assert sorted(third.chunks[0].new_block_ids) == [0, 1, 2]
    assert mesh.receive() == ()
    assert mesh.receive() == ()  # the token of the dead sequence, for a slot that is in use again
    mesh.finish()
    assert mesh.tokens[1] == []


def test_cancel_of_the_last_sequence_is_released_once_nothing_is_in_flight() -> None:
    """Case 7: vllm#9428: generation continues after the client left."""
    mesh = Mesh(make_limits())
    mesh.add(make_request(1))
    mesh.send()
    mesh.cancel(1)
    assert mesh.send() is None
    assert mesh.receive() == ()
    assert mesh.send() == Step(number=1, released_slots=(0,))
    mesh.finish()


def test_schedule_same_events_twice_makes_the_same_steps() -> None:
    def steps() -> list[Step]:
        mesh = Mesh(make_limits(num_blocks=10, max_sequences=3))
        for sequence_id in range(6):
            mesh.add(make_request(sequence_id, prompt=3 + sequence_id, max_tokens=6))
        made: list[Step] = []
        while mesh.scheduler.has_work:
            made += mesh.send_all()
            mesh.receive()
        return made

    assert steps() == steps()
