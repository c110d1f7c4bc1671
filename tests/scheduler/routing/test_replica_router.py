"""Selection of a replica, and the record of prefixes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduler.routing.replica_router import (
    MAX_PREFIX_CHUNKS,
    PREFIX_TOKENS,
    PrefixMemory,
    ReplicaLoad,
    RoutedWork,
    choose_replica,
)

IDLE = ReplicaLoad(0, takes_requests=True, num_blocks_free=64, block_size=16)
WORK = RoutedWork(num_prompt_tokens=100, num_new_tokens=20)


def idle(replica: int, **changes: object) -> ReplicaLoad:
    return replace(IDLE, replica=replica, **changes)  # type: ignore[arg-type]


def test_routing_equal_replicas_takes_the_first() -> None:
    assert choose_replica([idle(0), idle(1)], WORK, {}) == 0


def test_routing_less_work_owed_comes_first() -> None:
    assert choose_replica([idle(0, num_tokens_owed=1), idle(1)], WORK, {}) == 1


def test_routing_dead_or_draining_replica_is_never_picked() -> None:
    loads = [idle(0, takes_requests=False), idle(1, num_tokens_owed=10_000, num_blocks_free=0)]
    assert choose_replica(loads, WORK, {0: 100}) == 1
    assert choose_replica(loads[:1], WORK, {}) is None


def test_routing_free_kv_blocks_outweigh_work_owed() -> None:
    loads = [idle(0, num_blocks_free=7), idle(1, num_tokens_owed=500)]
    assert choose_replica(loads, WORK, {}) == 1


def test_routing_cached_prefix_counts_as_work_done() -> None:
    loads = [idle(0), idle(1, num_tokens_owed=50)]
    assert choose_replica(loads, WORK, {1: 64}) == 1
    assert choose_replica(loads, WORK, {1: 32}) == 0


def test_routing_slower_replica_takes_less_where_all_are_measured() -> None:
    loads = [idle(0, seconds_per_token=3.0), idle(1, num_tokens_owed=100, seconds_per_token=1.0)]
    assert choose_replica(loads, WORK, {}) == 1
    loads[1] = replace(loads[1], seconds_per_token=0.0)
    assert choose_replica(loads, WORK, {}) == 0


@given(
    st.lists(
        st.builds(
            ReplicaLoad,
            replica=st.just(0),
            takes_requests=st.booleans(),
            num_tokens_owed=st.integers(0, 10**6),
            num_blocks_free=st.integers(-100, 1000),
            block_size=st.integers(1, 64),
            seconds_per_token=st.floats(0, 1),
        ),
        max_size=6,
    )
)
def test_routing_any_loads_picks_one_that_takes_requests_if_there_is_one(
    loads: list[ReplicaLoad],
) -> None:
    numbered = [replace(load, replica=number) for number, load in enumerate(loads)]
    chosen = choose_replica(numbered, WORK, {0: 64})
    able = [load.replica for load in numbered if load.takes_requests]
    assert chosen in able if able else chosen is None


def test_prefix_memory_finds_shared_prefixes() -> None:
    memory = PrefixMemory()
    shared = tuple(range(2 * PREFIX_TOKENS))
    memory.note((*shared, *range(900, 1000)), replica=1)
    assert memory.num_kept((*shared, *range(500, 600))) == {1: 2 * PREFIX_TOKENS}
    assert memory.num_kept((7, *shared)) == {}
    assert memory.num_kept(shared[: PREFIX_TOKENS - 1]) == {}


def test_prefix_memory_other_salt_is_not_found() -> None:
    memory = PrefixMemory()
    prompt = tuple(range(PREFIX_TOKENS))
    memory.note(prompt, replica=1, cache_salt="ours")
    assert memory.num_kept(prompt, "ours") == {1: PREFIX_TOKENS}
    assert memory.num_kept(prompt, "theirs") == memory.num_kept(prompt) == {}


def test_prefix_memory_forgets_a_replica_that_lost_its_cache() -> None:
    memory = PrefixMemory()
    prompt = tuple(range(PREFIX_TOKENS))
    memory.note(prompt, replica=1)
    memory.forget(0)
    assert memory.num_kept(prompt) == {1: PREFIX_TOKENS}
    memory.forget(1)
    assert memory.num_kept(prompt) == {}


def test_prefix_memory_holds_no_more_than_its_capacity() -> None:
    memory = PrefixMemory(capacity=2)
    prompts = [(number,) * PREFIX_TOKENS for number in range(3)]
    for prompt in prompts:
        memory.note(prompt, replica=0)
    assert [bool(memory.num_kept(prompt)) for prompt in prompts] == [False, True, True]


def test_prefix_memory_long_prompt_is_compared_up_to_a_bound() -> None:
    memory = PrefixMemory()
    prompt = tuple(range((MAX_PREFIX_CHUNKS + 5) * PREFIX_TOKENS))
    memory.note(prompt, replica=0)
    assert memory.num_kept(prompt) == {0: MAX_PREFIX_CHUNKS * PREFIX_TOKENS}
