"""The links between ranks, and that their parts cover an activation exactly once."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from stage_worker.transport.hidden_partition import hidden_interval, overlapping_ranks, split_hidden


@given(tp_size=st.integers(1, 8), hidden_size=st.integers(8, 100), data=st.data())
def test_overlapping_ranks_equal_numbers_is_the_same_rank_alone(
    tp_size: int, hidden_size: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, tp_size - 1))
    own = hidden_interval(hidden_size, rank, tp_size)
    assert overlapping_ranks(own, hidden_size, tp_size) == {rank: own}


@given(
    num_senders=st.integers(1, 8), num_receivers=st.integers(1, 8), hidden_size=st.integers(8, 100)
)
def test_overlapping_ranks_are_symmetric_and_cover_every_column_once(
    num_senders: int, num_receivers: int, hidden_size: int
) -> None:
    sent = {
        (sender, receiver): part
        for sender in range(num_senders)
        for receiver, part in overlapping_ranks(
            hidden_interval(hidden_size, sender, num_senders), hidden_size, num_receivers
        ).items()
    }
    received = {
        (sender, receiver): part
        for receiver in range(num_receivers)
        for sender, part in overlapping_ranks(
            hidden_interval(hidden_size, receiver, num_receivers), hidden_size, num_senders
        ).items()
    }
    assert sent == received
    columns = [column for begin, end in sent.values() for column in range(begin, end)]
    assert sorted(columns) == list(range(hidden_size))


def test_overlapping_ranks_two_and_three_ranks() -> None:
    assert overlapping_ranks((0, 32), 64, 3) == {0: (0, 22), 1: (22, 32)}
    assert overlapping_ranks((32, 64), 64, 3) == {1: (32, 43), 2: (43, 64)}


def test_split_hidden_parts_are_contiguous() -> None:
    hidden_TH = torch.arange(12.0).reshape(2, 6)
    first, second = split_hidden(hidden_TH, ((10, 14), (14, 16)))
    assert first is not None
    assert second is not None
    assert torch.equal(first, hidden_TH[:, :4])
    assert torch.equal(second, hidden_TH[:, 4:])
    assert second.is_contiguous()


def test_split_hidden_step_without_tokens_is_none_for_each_part() -> None:
    assert split_hidden(None, ((0, 4), (4, 8))) == (None, None)
