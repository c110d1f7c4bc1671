"""Owns the vocabulary of loading: what a worker is told to hold, and what it says it holds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assignment:
    """One worker's part of one replica: what it loads."""

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
    """What a worker says after it has loaded its part."""

    num_kv_blocks: int
    weights_bytes: int
    peak_rss_bytes: int
    load_seconds: float
    weights_fingerprint: str
