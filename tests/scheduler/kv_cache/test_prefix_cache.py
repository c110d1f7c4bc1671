"""Sharing of KV blocks between sequences with equal prefixes."""

import pytest

from runtime.protocol.step import Step
from scheduler.kv_cache.block_manager import BlockManager
from scheduler.sequences.block_hashes import BlockHashes
from tests.scheduler.mesh_model import Mesh, make_limits, make_request

PROMPT = (1, 2, 3, 4, 5, 6, 7, 8, 9)  # two full blocks of four and one token


def run_first(mesh: Mesh, prompt: tuple[int, ...] = PROMPT, max_tokens: int = 2) -> None:
    mesh.add(make_request(1, prompt, max_tokens))
    mesh.finish()


def cached_tokens(step: Step) -> list[int]:
    return [len(opening.cached_token_ids) for opening in step.opened_slots]


def test_prompt_with_cached_prefix_computes_only_the_rest() -> None:
    mesh = Mesh(make_limits())
    run_first(mesh)
    mesh.add(make_request(2, (*PROMPT, 3, 3), 3))
    step = mesh.send()
    assert step is not None
    assert cached_tokens(step) == [8]
    (chunk,) = step.chunks
    assert (chunk.position, chunk.token_ids) == (8, (9, 3, 3))
    assert (mesh.scheduler.num_queried_tokens, mesh.scheduler.num_hit_tokens) == (9 + 11, 8)
    mesh.finish()


def test_prompt_fully_cached_computes_its_last_token() -> None:
    mesh = Mesh(make_limits())
    run_first(mesh, PROMPT[:8])
    mesh.add(make_request(2, PROMPT[:8], 3))
    step = mesh.send()
    assert step is not None
    assert cached_tokens(step) == [4]
    assert step.chunks[0].token_ids == (5, 6, 7, 8)
    mesh.finish()


def test_next_chat_turn_reuses_the_last_answer() -> None:
    mesh = Mesh(make_limits())
    run_first(mesh, PROMPT, max_tokens=8)
    turn = (*PROMPT, *mesh.tokens[1], 5, 5)
    mesh.add(make_request(2, turn, 3))
    step = mesh.send()
    assert step is not None
    assert cached_tokens(step) == [16]  # of 17 tokens, of which the last was never computed
    mesh.finish()


def test_choices_of_one_prompt_compute_it_once() -> None:
    mesh = Mesh(make_limits(num_steps_in_flight=4))
    for choice in range(4):
        mesh.add(make_request(choice, PROMPT, 3, arrival=0.0))
    first, second = mesh.send(), mesh.send()
    assert first is not None
    assert second is not None
    assert cached_tokens(first) == [0]
    assert cached_tokens(second) == [8, 8, 8]  # the first step is in flight still
    mesh.finish()
    assert mesh.stage.num_tokens == 9 + 3 * 1 + 4 * 2


def test_started_prompt_delays_only_sequences_with_its_prefix() -> None:
    mesh = Mesh(make_limits(max_step_tokens=6, num_steps_in_flight=4))
    mesh.add(make_request(1, PROMPT, 3))
    mesh.add(make_request(2, PROMPT, 3))
    mesh.add(make_request(3, (9, 9), 3))
    steps = mesh.send_all()
    opened = [mesh.scheduler.sequence_in_slot(o.slot) for step in steps for o in step.opened_slots]
    assert opened == [1, 3, 2]  # 3 overtakes: 2 would compute what 1 does
    mesh.finish()


def test_blocks_are_shared_from_the_step_after_the_one_that_fills_them() -> None:
    mesh = Mesh(make_limits(max_step_tokens=9, num_steps_in_flight=3))
    mesh.add(make_request(1, PROMPT[:8], 3))
    first = mesh.send()
    mesh.add(make_request(2, PROMPT, 3))
    second = mesh.send()
    assert first is not None
    assert second is not None
    assert mesh.num_results == 2
    assert second.opened_slots[0].cached_block_ids == first.chunks[0].new_block_ids[:2]
    mesh.finish()


@pytest.mark.parametrize(
    "changes",
    [{"cache_salt": "another"}, {"reads_prefix_cache": False}, {"prompt": (0, *PROMPT[1:])}],
)
def test_sequence_without_sharing_computes_all_tokens(changes: dict[str, object]) -> None:
    mesh = Mesh(make_limits())
    run_first(mesh)
    mesh.add(make_request(2, **{"prompt": PROMPT, "max_tokens": 2, **changes}))  # type: ignore[arg-type]
    step = mesh.send()
    assert step is not None
    assert cached_tokens(step) == [0]
    assert step.num_tokens == len(PROMPT)
    mesh.finish()


def test_prefix_caching_off_shares_nothing() -> None:
    mesh = Mesh(make_limits(prefix_caching=False))
    run_first(mesh)
    mesh.add(make_request(2, PROMPT, 2))
    mesh.add(make_request(3, PROMPT, 2))
    step = mesh.send()
    assert step is not None
    assert cached_tokens(step) == [0, 0]
    mesh.finish()
    assert mesh.scheduler.num_hit_tokens == 0


def test_restart_clears_the_cache() -> None:
    mesh = Mesh(make_limits())
    run_first(mesh)
    mesh.restart(make_limits())
    mesh.add(make_request(2, PROMPT, 2))
    step = mesh.send()
    assert step is not None
    assert cached_tokens(step) == [0]
    mesh.finish()


def test_restart_with_another_block_size_hashes_blocks_again() -> None:
    mesh = Mesh(make_limits(block_size=4))
    mesh.add(make_request(1, PROMPT, 3))
    mesh.send()
    mesh.restart(make_limits(block_size=2))
    mesh.finish()


def test_preempted_sequence_reuses_its_cached_blocks() -> None:
    mesh = Mesh(make_limits(num_blocks=5, block_size=2, num_steps_in_flight=1))
    mesh.expect_short_answers()
    mesh.add(make_request(1, prompt=3, max_tokens=5))
    mesh.add(make_request(2, prompt=4, max_tokens=3))
    mesh.finish()
    assert mesh.scheduler.num_preemptions > 0
    assert mesh.scheduler.num_hit_tokens > 0


def test_cached_blocks_are_evicted_least_recently_used_first() -> None:
    mesh = Mesh(make_limits(num_blocks=5, block_size=4))
    for sequence_id, token in enumerate((1, 2, 3)):
        mesh.add(make_request(sequence_id, (token,) * 5, 1))
        mesh.finish()
    mesh.add(make_request(3, (4,) * 17, 1))  # takes all five
    mesh.finish()
    for sequence_id, token in enumerate((4, 1), start=4):
        mesh.add(make_request(sequence_id, (token,) * 5, 1))
        step = mesh.send()
        assert step is not None
        assert cached_tokens(step) == [4 if token == 4 else 0]
        mesh.finish()


def test_block_hashes_depend_on_prefix_and_salt() -> None:
    tokens = [1, 2, 1, 2]
    same, other = BlockHashes(""), BlockHashes("salt")
    names = same.first(2, tokens, 2)
    assert len({*names, *other.first(2, tokens, 2)}) == 4
    assert BlockHashes("").first(2, tokens, 2) == names


def test_registered_block_is_found_until_it_is_allocated_again() -> None:
    manager = BlockManager(3)
    first, second, third = manager.take(3)
    manager.register(first, b"one")
    manager.register(second, b"two")
    manager.free((first, second, third))
    assert manager.num_free == 3
    manager.share((first,))
    assert manager.take(1) == (third,)  # the one without a name goes first
    assert manager.take(1) == (second,)
    assert (manager.find(b"one"), manager.find(b"two")) == (first, None)
    manager.check_integrity((first, second, third), 3)


def test_block_shared_by_two_is_free_after_both_release_it() -> None:
    manager = BlockManager(1)
    manager.take(1)
    manager.register(0, b"one")
    manager.share((0,))
    manager.free((0,))
    assert manager.num_free == 0
    manager.free((0,))
    assert manager.num_free == 1


def test_register_duplicate_hash_is_ignored() -> None:
    manager = BlockManager(2)
    manager.take(2)
    manager.register(0, b"one")
    manager.register(1, b"one")
    manager.free((0, 1))
    assert manager.find(b"one") == 0
    manager.check_integrity((), 2)
