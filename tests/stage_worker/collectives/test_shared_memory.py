"""Sums, gathers, agreement, aborts and timeouts of ranks that share memory."""

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch

from runtime.errors import (
    CollectiveTimeoutError,
    EpochEndedError,
    HeaderMismatchError,
    PositionError,
    SharedMemoryError,
)
from runtime.model_config.tensor_parallel import share_widths
from runtime.protocol.step import SequenceChunk, Step
from stage_worker.collectives.group import SINGLE_RANK, PendingSum, RankGroup
from stage_worker.collectives.group_factory import GroupSpec, open_group
from stage_worker.collectives.shared_file import segment_path
from tests.stage_worker.collectives.rank_threads import open_groups, run_ranks

OpenGroups = Callable[..., list[RankGroup]]


@pytest.fixture
def make_groups() -> Iterator[OpenGroups]:
    opened: list[RankGroup] = []

    def make(size: int, timeout_seconds: float = 20.0) -> list[RankGroup]:
        groups = open_groups(size, timeout_seconds)
        opened.extend(groups)
        return groups

    yield make
    for group in opened:
        group.close()


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 7), (300, 576), (700, 1031)], ids=str)
def test_all_reduce_any_size_gives_the_same_sum_on_every_rank(
    size: int, dtype: torch.dtype, shape: tuple[int, int], make_groups: OpenGroups
) -> None:
    inputs = [torch.randn(shape).to(dtype) for _ in range(size)]
    expected = inputs[0].clone()
    for other in inputs[1:]:
        expected += other
    groups = make_groups(size)
    outs = run_ranks(
        [partial(group.all_reduce_, x) for group, x in zip(groups, inputs, strict=True)]
    )
    assert all(isinstance(out, torch.Tensor) and torch.equal(out, expected) for out in outs)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("shape", [(1, 7), (400, 2000)], ids=str)
def test_gathers_uneven_columns_are_concatenated(
    size: int, shape: tuple[int, int], make_groups: OpenGroups
) -> None:
    whole = torch.randn(shape)
    widths = share_widths(shape[1], size)
    parts = whole.split(widths, dim=1)
    groups = make_groups(size)
    outs = run_ranks(
        [partial(g.all_gather, part, widths) for g, part in zip(groups, parts, strict=True)]
    )
    assert all(isinstance(out, torch.Tensor) and torch.equal(out, whole) for out in outs)
    first, *others = run_ranks(
        [partial(g.gather, part, widths) for g, part in zip(groups, parts, strict=True)]
    )
    assert isinstance(first, torch.Tensor)
    assert torch.equal(first, whole)
    assert others == [None] * (size - 1)


def test_begin_all_reduce_concurrent_sums_do_not_mix(make_groups: OpenGroups) -> None:
    """Two sums begun and finished like those of two slices, with a collective in between."""

    def run(group: RankGroup) -> list[float]:
        totals = []
        pending: list[PendingSum] = []
        for number in range(200):
            if len(pending) == 2:
                totals.append(float(pending.pop(0).finish().mean()))
            other = torch.full((1,), float(group.rank))
            totals.append(float(group.all_reduce_(other)))
            # Sometimes longer than a piece.
            size = 300_000 if number % 50 == 7 else 1 + number % 5
            x = torch.full((size,), float(number + group.rank))
            pending.append(group.begin_all_reduce_(x))
        return totals + [float(each.finish().mean()) for each in pending]

    first, *others = run_ranks([partial(run, group) for group in make_groups(3)])
    assert isinstance(first, list)
    assert sorted(first)[:200] == [3.0] * 200
    assert sorted(first)[200:] == [3.0 * number + 3 for number in range(200)]
    assert others == [first, first]


def test_begin_all_reduce_does_not_wait_for_other_ranks(make_groups: OpenGroups) -> None:
    early, late = make_groups(2)
    first = early.begin_all_reduce_(torch.ones(3))
    second = early.begin_all_reduce_(torch.full((2,), 2.0))
    waited_seconds = early.waited_seconds

    def catch_up() -> list[float]:
        sums = [late.begin_all_reduce_(torch.ones(size)) for size in (3, 2)]
        return [float(each.finish()[0]) for each in sums]

    def finish() -> list[float]:
        return [float(each.finish()[0]) for each in (first, second)]

    assert run_ranks([finish, catch_up]) == [[2.0, 3.0]] * 2
    assert waited_seconds == 0
    assert early.waited_seconds > 0


def test_collectives_in_sequence_do_not_mix(make_groups: OpenGroups) -> None:
    groups = make_groups(3)

    def run(group: RankGroup) -> list[float]:
        sums = []
        for number in range(300):
            group.agree(Step(number), None)
            x = torch.full((1 + number % 5,), float(number + group.rank))
            sums.append(float(group.all_reduce_(x).mean()))
            part = torch.full((2, 1), float(number))
            group.gather(part, (1, 1, 1))
        return sums

    expected = [3.0 * number + 3 for number in range(300)]
    assert run_ranks([partial(run, group) for group in groups]) == [expected] * 3


def test_agree_with_a_refusal_raises_it_on_every_rank(make_groups: OpenGroups) -> None:
    refusals = (None, PositionError(slot=4, expected=5, actual=6), None)
    groups = make_groups(3)
    outs = run_ranks(
        [partial(g.agree, Step(0), error) for g, error in zip(groups, refusals, strict=True)]
    )
    assert outs[1] is refusals[1]
    for other in (outs[0], outs[2]):
        assert isinstance(other, EpochEndedError)
        assert other.cause == "position"
        assert other.detail == "rank 1: slot 4: expected position 5, got 6"


def test_agree_on_different_headers_raises_naming_both_on_every_rank(
    make_groups: OpenGroups,
) -> None:
    steps = [Step(7, chunks=(SequenceChunk(0, 0, (token,)),)) for token in (1, 1, 2)]
    outs = run_ranks(
        [partial(g.agree, s, None) for g, s in zip(make_groups(3), steps, strict=True)]
    )
    for out in outs:
        assert isinstance(out, HeaderMismatchError)
        assert out.rank == 2
        assert out.expected != out.actual
    assert len({str(out) for out in outs}) == 1


def test_abort_while_a_rank_waits_ends_its_wait_with_the_cause(make_groups: OpenGroups) -> None:
    waiting, leaving = make_groups(2)
    error = EpochEndedError(cause="sender_gone", detail="the stream of sender 1 broke")
    outs = run_ranks(
        [
            partial(waiting.all_reduce_, torch.ones(3)),
            partial(leaving.abort, error),
        ]
    )
    assert isinstance(outs[0], EpochEndedError)
    assert outs[0].cause == "sender_gone"
    assert outs[0].detail == "rank 1: the stream of sender 1 broke"


def test_abort_ends_the_same_ranks_wait(make_groups: OpenGroups) -> None:
    group, _ = make_groups(2)
    error = EpochEndedError(cause="closed", detail="another epoch took over")
    outs = run_ranks([partial(group.agree, Step(0), None), partial(group.abort, error)])
    assert isinstance(outs[0], EpochEndedError)


def test_close_of_a_rank_ends_the_waits_of_the_others(make_groups: OpenGroups) -> None:
    waiting, leaving = make_groups(2)
    outs = run_ranks([partial(waiting.gather, torch.ones(1, 1), (1, 1)), leaving.close])
    assert isinstance(outs[0], EpochEndedError)
    assert outs[0].cause == "closed"


def test_collective_missing_rank_times_out_with_its_number(
    make_groups: OpenGroups,
) -> None:
    groups = make_groups(3, timeout_seconds=1.0)
    outs = run_ranks([partial(group.agree, Step(3), None) for group in groups[:2]])
    for rank, out in enumerate(outs):
        assert isinstance(out, CollectiveTimeoutError)
        assert (out.rank, out.missing) == (rank, "rank 2")
        assert out.what == "the agreement on step 3"


def test_group_after_the_first_agreement_has_no_file() -> None:
    name = f"test-file-{os.getpid()}"
    groups = [open_group(GroupSpec(name, rank, 2)) for rank in range(2)]
    assert segment_path(name).exists()
    run_ranks([partial(group.agree, Step(0), None) for group in groups])
    assert not segment_path(name).exists()
    for group in groups:
        group.close()


def test_group_closed_before_the_first_agreement_leaves_no_file() -> None:
    name = f"../../test-unmet-{os.getpid()}"
    path = segment_path(name)
    assert path.parent == segment_path("other").parent
    group = open_group(GroupSpec(name, 0, 2))
    group.abort(EpochEndedError(cause="sender_gone", detail="a stream broke"))
    assert not path.exists()
    group.close()


def test_group_without_room_for_its_memory_raises_with_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(file: int, offset: int, num_bytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    name = f"test-full-{os.getpid()}"
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(SharedMemoryError, match="No space left") as caught:
        open_group(GroupSpec(name, 0, 2))
    error = caught.value
    assert error.path == str(segment_path(name))
    assert (error.num_bytes > 2**20, error.available_bytes > 0) == (True, True)
    for expected in (f"{error.num_bytes:,} bytes", f"{error.available_bytes:,} bytes are free"):
        assert expected in str(error)
    assert not segment_path(name).exists()


def test_open_group_one_rank_is_the_single_rank_group() -> None:
    assert open_group(GroupSpec("alone", 0, 1)) is SINGLE_RANK
    x = torch.ones(2, 2)
    assert SINGLE_RANK.all_reduce_(x) is x
    assert SINGLE_RANK.begin_all_reduce_(x).finish() is x
    assert SINGLE_RANK.all_gather(x, (2,)) is x
    assert SINGLE_RANK.gather(x, (2,)) is x
