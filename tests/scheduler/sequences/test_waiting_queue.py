"""The order of admission: aged priorities, tenants' shares, deadlines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import SequenceRequest
from scheduler.sequences.sequence import DEFAULT_TTFT_SECONDS, TrackedSequence
from scheduler.sequences.waiting_queue import AGEING_SECONDS, MAX_COUNTERS, FairShare, WaitingQueue
from tests.scheduler.mesh_model import Mesh, make_limits, make_request


def order(requests: list[SequenceRequest], now: float = 0.0) -> list[int]:
    queue = WaitingQueue(FairShare())
    for request in requests:
        queue.add(TrackedSequence(request, list(request.prompt_ids), final_len=100))
    queue.check_integrity()
    return [sequence.sequence_id for sequence in queue.in_order(now)]


def test_equal_sequences_are_ordered_by_arrival() -> None:
    assert order([make_request(2), make_request(3, arrival=1.0), make_request(1)]) == [1, 3, 2]


def test_lowest_priority_number_comes_first() -> None:
    requests = [make_request(1), make_request(2, priority=-1), make_request(3, priority=5)]
    assert order(requests) == [2, 1, 3]


def test_earliest_deadline_comes_first_within_a_priority() -> None:
    requests = [
        make_request(1, arrival=0.0),
        make_request(2, arrival=1.0, ttft_target_seconds=DEFAULT_TTFT_SECONDS - 2.0),
        make_request(3, arrival=2.0, deadline=3.0),
    ]
    assert order(requests) == [3, 2, 1]


def test_priority_ages_up_to_the_best_waiting() -> None:
    old = make_request(1, arrival=0.0, priority=2)
    new = make_request(2, arrival=3 * AGEING_SECONDS, priority=0)
    assert order([old, new], now=1.9 * AGEING_SECONDS) == [2, 1]
    assert order([old, new], now=2.0 * AGEING_SECONDS) == [1, 2]
    # No sequence ages past those of its own priority in another tenant's queue.
    own = make_request(3, arrival=0.0, tenant="busy", prompt=50)
    other = make_request(4, arrival=90.0, tenant="quiet")
    assert order([make_request(5, arrival=0.0, tenant="busy"), own, other], now=99.0)[1] == 4


def test_tenants_take_turns_by_tokens() -> None:
    requests = [make_request(number, prompt=4, tenant="many") for number in range(6)]
    requests.append(make_request(6, prompt=10, tenant="one", arrival=0.0))
    requests.append(make_request(7, prompt=10, tenant="one", arrival=0.0))
    assert order(requests) == [0, 6, 1, 2, 7, 3, 4, 5]


def test_returning_tenant_gains_no_credit_while_idle() -> None:
    shares = FairShare()
    shares.arrive("busy", ())
    shares.admit("busy", 1000)
    shares.arrive("back", {"busy"})
    assert shares["back"] == 1000
    shares.charge("busy", 5)
    assert shares["back"] < shares["busy"]


def test_tenant_in_an_empty_queue_starts_at_the_last_count() -> None:
    shares = FairShare()
    for _ in range(3):
        shares.admit("busy", 100)
    shares.arrive("new", ())
    assert shares["new"] == 200


def test_counters_of_absent_tenants_are_dropped() -> None:
    shares = FairShare()
    for number in range(3 * MAX_COUNTERS):
        shares.arrive(str(number), {"staying"})
    assert len(shares._served) <= MAX_COUNTERS + 1


@given(
    requests=st.lists(
        st.tuples(
            st.integers(-2, 2),
            st.sampled_from("abc"),
            st.floats(0.0, 200.0),
            st.none() | st.floats(0.0, 30.0),
        ),
        max_size=30,
    ),
    now=st.floats(0.0, 400.0),
    removed=st.sets(st.integers(0, 29)),
)
def test_in_order_yields_every_sequence_once(
    requests: list[tuple[int, str, float, float | None]], now: float, removed: set[int]
) -> None:
    queue = WaitingQueue(FairShare())
    tracked = [
        TrackedSequence(
            make_request(
                number, priority=priority, tenant=tenant, arrival=arrival, ttft_target_seconds=ttft
            ),
            [1, 2],
            final_len=9,
        )
        for number, (priority, tenant, arrival, ttft) in enumerate(requests)
    ]
    for sequence in tracked:
        queue.add(sequence)
    for number in removed & set(range(len(tracked))):
        queue.remove(tracked[number])
    queue.check_integrity()
    found = [sequence.sequence_id for sequence in queue.in_order(now)]
    assert found == turns([each for each in tracked if each.sequence_id not in removed], now)
    assert len(queue) == len(found)


def turns(waiting: list[TrackedSequence], now: float) -> list[int]:
    """The reference order: repeatedly the first head of all queues."""
    queues: dict[tuple[str, int], list[TrackedSequence]] = {}
    for sequence in sorted(waiting, key=lambda each: each.due_key):
        key = (sequence.request.tenant, sequence.request.priority)
        queues.setdefault(key, []).append(sequence)
    best = min((priority for _, priority in queues), default=0)
    served = dict.fromkeys((tenant for tenant, _ in queues), 0)

    def turn(sequence: TrackedSequence) -> tuple[int, int, tuple[float, float, int]]:
        request = sequence.request
        num_steps = int(max(0.0, now - request.arrival) / AGEING_SECONDS)
        aged = max(min(best, request.priority), request.priority - num_steps)
        return aged if len(queues) > 1 else best, served[request.tenant], sequence.due_key

    order = []
    while queues:
        key = min(queues, key=lambda each: turn(queues[each][0]))
        sequence = queues[key].pop(0)
        if not queues[key]:
            del queues[key]
        served[key[0]] += sequence.num_unsent
        order.append(sequence.sequence_id)
    return order


def test_low_priority_under_an_endless_load_of_high_ones_is_served() -> None:
    mesh = Mesh(make_limits(max_sequences=2, num_steps_in_flight=1))
    mesh.add(make_request(1, priority=3, arrival=0.0, max_tokens=2))
    number = 1
    while 1 not in mesh.finish_reasons:
        while mesh.scheduler.num_waiting < 3:
            number += 1
            mesh.add(make_request(number, arrival=mesh.now, max_tokens=2))
        mesh.send_all()
        mesh.receive()
        mesh.now += 2.0
        assert mesh.now < 5 * AGEING_SECONDS
    mesh.finish()


def test_small_tenant_under_contention_gets_half_of_the_tokens() -> None:
    mesh = Mesh(make_limits(max_sequences=2, num_steps_in_flight=1, max_waiting=200))
    for number in range(100):
        mesh.add(make_request(number, tenant="flood", arrival=0.0))
    for number in range(100, 110):
        mesh.add(make_request(number, tenant="small", arrival=1.0))
    while not set(range(100, 110)) <= mesh.finish_reasons.keys():
        mesh.send_all()
        mesh.receive()
    assert sum(number < 100 for number in mesh.finish_reasons) <= 13
    mesh.finish()


@pytest.mark.parametrize("priority", [0, 1])
def test_urgent_prompt_overtakes_a_long_started_one(priority: int) -> None:
    mesh = Mesh(make_limits(max_step_tokens=8, num_steps_in_flight=1))
    mesh.add(make_request(1, prompt=40, priority=priority, arrival=0.0, max_tokens=2))
    mesh.send()
    mesh.receive()
    mesh.add(make_request(2, prompt=4, arrival=1.0, max_tokens=2))
    step = mesh.send()
    assert step is not None
    assert bool(step.opened_slots) is (priority == 1)
    mesh.finish()
