"""The share of each tensor-parallel rank of a stage: pure arithmetic, equal on all processes.

Coordinator and workers compute the intervals here, so that they are not transmitted. Every
share is one contiguous interval; where a count does not divide, the first ranks have one more.
"""

from dataclasses import dataclass

from runtime.errors import TooManyRanksError
from runtime.model_config.model_config import ModelConfig


def share(total: int, rank: int, size: int) -> range:
    """The interval of `rank` when `total` items are divided among `size` ranks."""
    least, num_larger = divmod(total, size)
    begin = rank * least + min(rank, num_larger)
    return range(begin, begin + least + (rank < num_larger))


def share_widths(total: int, size: int) -> tuple[int, ...]:
    """The number of items of each rank, in order."""
    return tuple(len(share(total, rank, size)) for rank in range(size))


def scaled(interval: range, factor: int) -> range:
    """The interval in elements, with `factor` elements per item."""
    return range(interval.start * factor, interval.stop * factor)


def shifted(interval: range, offset: int) -> range:
    """The interval, shifted by `offset`."""
    return range(interval.start + offset, interval.stop + offset)


def max_tp_size(config: ModelConfig) -> int:
    """At most one rank per key/value head; a single head is replicated to all ranks."""
    return config.num_heads if config.num_kv_heads == 1 else config.num_kv_heads


def check_tp_size(config: ModelConfig, tp_size: int) -> None:
    """Raises `TooManyRanksError` if a rank would have no heads."""
    if tp_size > max_tp_size(config):
        raise TooManyRanksError(
            tp_size=tp_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            max_tp_size=max_tp_size(config),
        )


@dataclass(frozen=True, slots=True)
class RankShares:
    """The share of one rank of `size` in every layer, as intervals of the whole model's counts.

    Attention is cut between key/value heads, each with the query heads that read it (`heads`). If
    there is only one (multi-query attention), all ranks have it and share the query heads out.
    `hidden` is what the rank takes from the stage before and gives to the next one; inside a stage
    hidden states are whole on every rank. `experts` is empty for a model without any.
    """

    rank: int
    size: int
    heads: range
    kv_heads: range
    intermediate: range
    experts: range
    vocab: range
    hidden: range

    @classmethod
    def of(cls, config: ModelConfig, rank: int = 0, size: int = 1) -> "RankShares":
        """Raises `TooManyRanksError` if a rank would have no heads."""
        check_tp_size(config, size)
        if config.num_kv_heads == 1:
            kv_heads, heads = range(1), share(config.num_heads, rank, size)
        else:
            kv_heads = share(config.num_kv_heads, rank, size)
            heads = scaled(kv_heads, config.num_heads // config.num_kv_heads)
        num_experts = config.experts.num_experts if config.experts is not None else 0
        return cls(
            rank,
            size,
            heads=heads,
            kv_heads=kv_heads,
            intermediate=share(config.intermediate_size, rank, size),
            experts=share(num_experts, rank, size),
            vocab=share(config.vocab_size, rank, size),
            hidden=share(config.hidden_size, rank, size),
        )
