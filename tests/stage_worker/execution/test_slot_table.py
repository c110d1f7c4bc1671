"""The changes of a step: every wrong slot, position and block raises a typed error."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from runtime.errors import BlockError, FrameError, PositionError, SlotError
from runtime.protocol.step import SequenceChunk, SlotOpening, SlotSampling, Step
from stage_worker.execution.slot_table import SlotLimits, SlotTable

LIMITS = SlotLimits(max_sequences=3, num_blocks=6, block_size=4, max_model_len=10)
OPENING = SlotOpening(1, SlotSampling())


@pytest.fixture
def slots() -> Iterator[SlotTable]:
    """Slot 1 is open with 5 tokens in blocks 4 and 0; all are released at the end."""
    table = SlotTable(LIMITS)
    chunk = SequenceChunk(1, 0, (7, 7, 7, 7, 7), new_block_ids=(4, 0))
    table.apply(Step(0, opened_slots=(OPENING,), chunks=(chunk,)))
    yield table
    if table.num_slots_used:
        table.apply(Step(1, released_slots=(1,)))
    assert table.num_slots_used == 0
    assert table.num_blocks_used == 0


def test_slot_table_after_a_chunk_holds_its_tokens_and_blocks(slots: SlotTable) -> None:
    assert slots[1].num_tokens == 5
    assert slots[1].block_ids == [4, 0]
    assert slots.tables_BP[1, :2].tolist() == [4, 0]
    assert (slots.num_slots_used, slots.num_blocks_used) == (1, 2)


def test_slot_table_decode_within_the_last_block_needs_no_block(slots: SlotTable) -> None:
    slots.apply(Step(1, chunks=(SequenceChunk(1, 5, (9,)),)))
    assert slots[1].num_tokens == 6


def test_slot_table_slot_and_blocks_released_are_free_in_the_same_step(slots: SlotTable) -> None:
    chunk = SequenceChunk(1, 0, (8,), new_block_ids=(4,))
    slots.apply(Step(1, released_slots=(1,), opened_slots=(OPENING,), chunks=(chunk,)))
    assert slots[1].num_tokens == 1
    assert slots[1].block_ids == [4]


def open_cached(slot: int, tokens: tuple[int, ...], blocks: tuple[int, ...]) -> Step:
    return Step(1, opened_slots=(SlotOpening(slot, SlotSampling(), tokens, blocks),))


def test_slot_table_full_block_is_shared_until_its_last_slot_is_released(slots: SlotTable) -> None:
    chunk = SequenceChunk(2, 4, (1, 2), new_block_ids=(5,))
    step = open_cached(2, (7, 7, 7, 7), (4,))
    slots.apply(replace(step, chunks=(chunk,)))
    assert (slots[2].num_tokens, slots[2].block_ids) == (6, [4, 5])
    assert slots.tables_BP[2, :2].tolist() == [4, 5]
    assert slots.num_blocks_used == 3
    slots.apply(Step(2, released_slots=(1,)))
    assert slots.num_blocks_used == 2
    slots.apply(Step(3, released_slots=(2,)))
    assert slots.num_blocks_used == 0


def test_slot_table_full_block_without_a_slot_is_shared_again(slots: SlotTable) -> None:
    slots.apply(Step(1, released_slots=(1,)))
    slots.apply(replace(open_cached(1, (7, 7, 7, 7), (4,)), number=2))
    assert (slots[1].num_tokens, slots.num_blocks_used) == (4, 1)


def test_slot_table_cached_tokens_count_for_penalties(slots: SlotTable) -> None:
    opening = SlotOpening(2, SlotSampling(presence_penalty=1.0), (7, 7, 7, 7), (4,))
    chunk = SequenceChunk(2, 4, (9,), new_block_ids=(5,))
    slots.apply(Step(1, opened_slots=(opening,), chunks=(chunk,)))
    assert slots[2].token_ids == [7, 7, 7, 7, 9]
    slots.apply(Step(2, released_slots=(2,)))


def test_slot_table_writing_a_shared_block_raises(slots: SlotTable) -> None:
    slots.apply(open_cached(2, (7, 7, 7, 7), (4,)))
    with pytest.raises(BlockError, match="in use"):
        slots.apply(Step(2, chunks=(SequenceChunk(2, 4, (1,), new_block_ids=(4,)),)))
    slots.apply(Step(2, released_slots=(2,)))


@pytest.mark.parametrize(
    ("tokens", "blocks", "problem"),
    [
        ((7,) * 4, (0,), "has filled"),  # holds one token
        ((7,) * 4, (3,), "has filled"),  # never held any
        ((7,) * 8, (4, 4), "twice"),
        ((7,) * 3, (4,), "expected 4"),
        ((), (4,), "expected 4"),
    ],
)
def test_slot_table_opening_with_blocks_that_cannot_be_shared_raises(
    slots: SlotTable, tokens: tuple[int, ...], blocks: tuple[int, ...], problem: str
) -> None:
    with pytest.raises((BlockError, FrameError), match=problem):
        slots.apply(open_cached(2, tokens, blocks))
    slots.apply(Step(2, released_slots=(2,)))


def test_slot_table_reallocated_block_is_not_full(slots: SlotTable) -> None:
    slots.apply(Step(1, released_slots=(1,)))
    chunk = SequenceChunk(1, 0, (7,), new_block_ids=(4,))
    slots.apply(Step(2, opened_slots=(OPENING,), chunks=(chunk,)))
    with pytest.raises(BlockError, match="has filled"):
        slots.apply(open_cached(2, (7, 7, 7, 7), (4,)))
    slots.apply(Step(3, released_slots=(2,)))


def test_slot_table_block_filled_in_the_same_step_is_not_shared() -> None:
    table = SlotTable(LIMITS)
    openings = (OPENING, SlotOpening(2, SlotSampling(), (7, 7, 7, 7), (4,)))
    chunk = SequenceChunk(1, 0, (7, 7, 7, 7), new_block_ids=(4,))
    with pytest.raises(BlockError, match="has filled"):
        table.apply(Step(0, opened_slots=openings, chunks=(chunk,)))


@pytest.mark.parametrize(
    "sampling",
    [
        SlotSampling(temperature=math.nan),
        SlotSampling(temperature=math.inf),
        SlotSampling(temperature=-1.0),
        SlotSampling(temperature=1.0, top_p=math.nan),
        SlotSampling(temperature=1.0, top_p=0.0),
        SlotSampling(temperature=1.0, min_p=2.0),
    ],
)
def test_slot_table_sampling_that_cannot_draw_raises(sampling: SlotSampling) -> None:
    with pytest.raises(SlotError, match="cannot draw"):
        SlotTable(LIMITS).apply(Step(0, opened_slots=(SlotOpening(0, sampling),)))


@pytest.mark.parametrize(
    ("step", "slot"),
    [
        (Step(1, released_slots=(2,)), 2),
        (Step(1, released_slots=(1, 1)), 1),
        (Step(1, opened_slots=(OPENING,)), 1),
        (Step(1, opened_slots=(SlotOpening(3, SlotSampling()),)), 3),
        (Step(1, chunks=(SequenceChunk(0, 0, (1,), (1,)),)), 0),
    ],
    ids=["release-closed", "release-twice", "open-twice", "open-outside", "chunk-closed"],
)
def test_slot_table_slot_in_the_wrong_state_raises(step: Step, slot: int) -> None:
    table = SlotTable(LIMITS)
    table.apply(Step(0, opened_slots=(OPENING,)))
    with pytest.raises(SlotError) as caught:
        table.apply(step)
    assert caught.value.slot == slot


@pytest.mark.parametrize("position", [0, 4, 6])
def test_slot_table_position_other_than_tokens_held_raises(slots: SlotTable, position: int) -> None:
    with pytest.raises(PositionError) as caught:
        slots.apply(Step(1, chunks=(SequenceChunk(1, position, (1,)),)))
    assert (caught.value.slot, caught.value.expected, caught.value.actual) == (1, 5, position)


@pytest.mark.parametrize(
    ("new_block_ids", "block"),
    [((6,), 6), ((-1,), -1), ((4,), 4), ((2, 2), 2), ((), 0), ((1, 2), 2)],
    ids=["outside", "negative", "in-use", "twice", "too-few", "too-many"],
)
def test_slot_table_block_that_does_not_fit_raises(
    slots: SlotTable, new_block_ids: tuple[int, ...], block: int
) -> None:
    with pytest.raises(BlockError) as caught:
        slots.apply(Step(1, chunks=(SequenceChunk(1, 5, (1,) * 4, new_block_ids),)))
    assert (caught.value.slot, caught.value.block) == (1, block)


def test_slot_table_first_chunk_without_blocks_raises() -> None:
    table = SlotTable(LIMITS)
    with pytest.raises(BlockError):
        table.apply(Step(0, opened_slots=(OPENING,), chunks=(SequenceChunk(1, 0, (1,)),)))


def test_slot_table_chunk_without_tokens_raises(slots: SlotTable) -> None:
    with pytest.raises(FrameError):
        slots.apply(Step(1, chunks=(SequenceChunk(1, 5, ()),)))


def test_slot_table_sequence_longer_than_the_model_raises(slots: SlotTable) -> None:
    with pytest.raises(FrameError, match="at most 10, got 11"):
        slots.apply(Step(1, chunks=(SequenceChunk(1, 5, (1,) * 6, (1,)),)))
