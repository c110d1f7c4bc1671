"""Allocation and release of blocks."""

import pytest

from scheduler.kv_cache.block_manager import BlockManager


def test_take_free_blocks_returns_distinct_ids_and_counts_them() -> None:
    manager = BlockManager(4)
    assert manager.take(3) == (0, 1, 2)
    assert (manager.num_used, manager.num_free) == (3, 1)


def test_take_after_free_returns_the_first_freed_block() -> None:
    manager = BlockManager(4)
    manager.take(4)
    manager.free((2,))
    manager.free((0, 3))
    assert manager.take(2) == (2, 0)


def test_take_more_than_free_fails() -> None:
    with pytest.raises(AssertionError, match="3 blocks of 2 free"):
        BlockManager(2).take(3)


def test_free_twice_fails() -> None:
    manager = BlockManager(2)
    manager.take(1)
    manager.free((0,))
    with pytest.raises(AssertionError, match="block 0 was freed twice"):
        manager.free((0,))


@pytest.mark.parametrize("held", [(), (0,), (0, 1, 1), (0, 2)])
def test_check_integrity_with_other_blocks_than_held_fails(held: tuple[int, ...]) -> None:
    manager = BlockManager(3)
    manager.take(2)
    with pytest.raises(AssertionError):
        manager.check_integrity(held, 3)
