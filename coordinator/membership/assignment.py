"""Defines what a worker loads, what it reports once it has, and its reference for the canary."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assignment:
    """One worker's part of one replica."""

    replica: int
    stage: int
    num_stages: int
    rank: int
    tp_size: int
    first_layer: int
    num_layers: int
    model: str
    weights_fingerprint: str
    dtype: str
    block_size: int
    max_model_len: int
    kv_memory_bytes: int


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a worker reports after it has loaded its part."""

    num_kv_blocks: int
    weights_bytes: int
    peak_rss_bytes: int
    load_seconds: float
    weights_fingerprint: str


@dataclass(frozen=True, slots=True)
class CanaryReference:
    """The unsplit model's most likely tokens after `token_ids`, best first, with log-probabilities.

    `top_ids` and `top_logprobs` have the same length.
    """

    token_ids: tuple[int, ...]
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]
