"""Preemption and readmission of sequences."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.batching.microbatch import MicrobatchDraft
from scheduler.batching.preemption import PreemptionCandidates
from scheduler.sequences.sequence import SlotAllocation, TrackedSequence
from tests.scheduler.mesh_model import Mesh, make_limits, make_request


def test_decode_without_a_free_block_preempts_the_newest() -> None:
    mesh = Mesh(make_limits(num_blocks=4, block_size=2, num_steps_in_flight=1))
    mesh.expect_short_answers()
    mesh.add(make_request(1, prompt=3, max_tokens=5))
    mesh.add(make_request(2, prompt=3, max_tokens=5))
    for _ in range(2):
        mesh.send()
        mesh.receive()
    assert (mesh.scheduler.num_blocks_used, mesh.scheduler.num_preemptions) == (4, 0)
    step = mesh.send()
    assert step is not None
    assert mesh.scheduler.num_preemptions == 1
    assert [mesh.scheduler.sequence_in_slot(chunk.slot) for chunk in step.chunks] == [1]
    assert len(step.released_slots) == 1
    assert len(step.chunks[0].new_block_ids) == 1
    mesh.finish()


def test_preempted_sequences_get_the_same_tokens_each_once() -> None:
    mesh = Mesh(make_limits(num_blocks=12, block_size=2, max_model_len=24, num_steps_in_flight=3))
    mesh.expect_short_answers()
    for sequence_id in range(8):
        mesh.add(make_request(sequence_id, prompt=2 + sequence_id % 3, max_tokens=18))
    mesh.finish()
    assert mesh.scheduler.num_preemptions > 0


def test_preempted_token_in_flight_is_dropped_and_sampled_again() -> None:
    mesh = Mesh(make_limits(num_blocks=4, block_size=2, num_steps_in_flight=2))
    mesh.expect_short_answers()
    mesh.add(make_request(1, prompt=3, max_tokens=5))
    mesh.add(make_request(2, prompt=3, max_tokens=5))
    mesh.send()
    mesh.receive()
    mesh.send_all()  # a decode of 1, then a decode of 2
    assert [event.sequence_id for event in mesh.receive()] == [1]
    mesh.send()  # 1 takes the blocks of 2, whose token is still on the way
    assert mesh.scheduler.num_preemptions == 1
    assert mesh.receive() == ()
    assert len(mesh.tokens[2]) == 1
    mesh.finish()


def test_oldest_sequence_is_never_preempted() -> None:
    mesh = Mesh(make_limits(num_blocks=10, block_size=1, max_model_len=11, num_steps_in_flight=2))
    mesh.expect_short_answers()
    for sequence_id in range(4):
        mesh.add(make_request(sequence_id, prompt=2, max_tokens=9))
    order: list[int] = []
    while mesh.scheduler.has_work:
        mesh.send_all()
        events = mesh.receive()
        order += [event.sequence_id for event in events if event.finish_reason]
    assert order == [0, 1, 2, 3]
    mesh.check_answers()


def test_readmission_before_the_old_token_still_drops_it() -> None:
    mesh = Mesh(make_limits(num_blocks=6, block_size=2, num_steps_in_flight=4))
    mesh.expect_short_answers()
    mesh.add(make_request(1, prompt=3, max_tokens=5))
    mesh.add(make_request(2, prompt=3, max_tokens=5))
    mesh.add(make_request(3, prompt=3, max_tokens=5))
    mesh.send()
    mesh.receive()
    mesh.send_all()  # one decode each
    assert [event.sequence_id for event in mesh.receive()] == [1]
    mesh.send()  # 1 takes a block of 3, whose token is on the way
    assert mesh.scheduler.num_preemptions == 1
    mesh.cancel(2)
    step = mesh.send()
    assert step is not None
    assert [mesh.scheduler.sequence_in_slot(opening.slot) for opening in step.opened_slots] == [3]
    assert mesh.receive() == ()  # the decode of 2
    assert mesh.receive() == ()  # the old token of 3
    mesh.finish()


def test_admission_reserves_blocks_for_ready_decodes() -> None:
    mesh = Mesh(make_limits(num_blocks=6, block_size=2, num_steps_in_flight=2))
    mesh.expect_short_answers()
    mesh.add(make_request(1, prompt=3, max_tokens=5))
    mesh.add(make_request(2, prompt=3, max_tokens=5))
    mesh.send()
    mesh.receive()
    mesh.send_all()
    mesh.receive()
    mesh.receive()
    mesh.add(make_request(3, prompt=1, max_tokens=1))
    mesh.send()  # a decode of 1 takes the last block but one, which 2 needs now
    assert mesh.scheduler.num_waiting == 1
    mesh.finish()


def running(number: int, rank: int, arrival: float, num_sent: int) -> TrackedSequence:
    request = make_request(number, prompt=50, arrival=arrival, priority=rank)
    sequence = TrackedSequence(request, list(request.prompt_ids), final_len=60)
    sequence.allocation = SlotAllocation(sequence, number, [], 64, num_sent)
    return sequence


@given(
    others=st.lists(
        st.tuples(st.integers(0, 1), st.floats(0.0, 4.0), st.integers(0, 40)), max_size=12
    ),
    beneficiaries=st.lists(st.integers(0, 11), max_size=8),
    in_draft=st.sets(st.integers(0, 11), max_size=4),
)
def test_pop_returns_the_first_less_urgent_candidate(
    others: list[tuple[int, float, int]], beneficiaries: list[int], in_draft: set[int]
) -> None:
    """The lowest priority, then the latest second, then the fewest computed tokens."""
    sequences = [running(number, *each) for number, each in enumerate(others)]
    draft = MicrobatchDraft()
    for sequence in sequences:
        if sequence.sequence_id in in_draft and sequence.allocation is not None:
            draft.add_prompt(sequence.allocation, 2)
    candidates = PreemptionCandidates(sequences, draft)
    for beneficiary in (sequences[number] for number in beneficiaries if number < len(sequences)):
        able = [
            each
            for each in sequences
            if each.allocation and each not in draft and each.urgency_key > beneficiary.urgency_key
        ]
        candidate = candidates.pop(beneficiary)
        assert (candidate is None) == (not able)
        if candidate is not None:
            assert candidate in able
            assert order_of(candidate) == max(map(order_of, able))
            candidate.allocation = None


def order_of(sequence: TrackedSequence) -> tuple[int, int, int]:
    """The first to preempt has the highest key."""
    return sequence.rank, int(sequence.due_key[0]), -sequence.num_sent
