"""Divides a model into the assignments of one replica, by stage and rank; also with fewer stages.

Pure functions of options, model and workers. The scheduler package's `layer_split` divides the
layers; this module supplies the costs.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from coordinator.membership.assignment import Assignment
from coordinator.membership.worker_record import WorkerRecord
from coordinator.options import AUTO_DTYPE, CoordinatorOptions
from runtime.checkpoints.model_store import BUNDLED_MODEL
from runtime.errors import InvalidRequestError, NeverFitsError, RankCountError, StagemeshError
from runtime.model_config.model_config import ModelConfig
from runtime.model_config.tensor_parallel import check_tp_size
from scheduler import check_layers, make_plan, split_layers

# The rest of a device is for the KV cache, activations and other processes.
_WEIGHTS_SHARE = 0.8


def degraded_options(options: CoordinatorOptions) -> Iterator[CoordinatorOptions]:
    """The options themselves, then with one stage less each time and layers divided evenly.

    Stages with different numbers of ranks have no smaller plan: no rule decides which one to drop.
    """
    yield options
    if len(set(options.tp_sizes)) == 1:
        for num_stages in range(options.pp - 1, 0, -1):
            yield replace(options, pp=num_stages, tp=options.tp_sizes[:1], layers=None)


def try_plan(
    options: CoordinatorOptions, config: ModelConfig, fingerprint: str, replica: int
) -> tuple[Assignment, ...] | None:
    """The plan for `options`; None if the model does not allow them."""
    try:
        return plan_replica(options, config, fingerprint, replica)
    except StagemeshError:
        return None


def fits_memory(
    assignments: Sequence[Assignment], workers: Sequence[WorkerRecord], weights_bytes: int
) -> bool:
    """Whether the devices hold their parts of `weights_bytes` and the requested KV cache.

    CPU workers of one node share its memory. A device that reports no memory counts as large
    enough, until loading fails.
    """
    num_layers = sum(part.num_layers for part in assignments if part.rank == 0)
    needed: Counter[str] = Counter()
    available: dict[str, int] = {}
    for part, worker in zip(assignments, workers, strict=True):
        identity = worker.identity
        device = identity.node if identity.device_kind == "cpu" else identity.worker_id
        part_bytes = weights_bytes * part.num_layers // (num_layers * part.tp_size)
        needed[device] += int(part_bytes / _WEIGHTS_SHARE) + part.kv_memory_bytes
        available[device] = identity.memory_bytes
    return all(not available[each] or needed[each] <= available[each] for each in needed)


# Share of a stage's time in decode steps, for a mix of prompts and generated text.
_DECODE_SHARE = 0.5


def head_cost_in_layers(config: ModelConfig) -> float:
    """The cost of the output head, in layers.

    A decode step is bound by reading weights, so cost is proportional to size: vocab x hidden for
    the head; attention and three MLP matrices (of all experts, if any) for a layer. Prefill
    computes the head for a prompt's last token only, which is negligible, so the head is weighted
    with `_DECODE_SHARE`. The embedding looks up a few rows and costs nothing.
    """
    hidden = config.hidden_size
    attention = 2 * hidden * config.head_dim * (config.num_heads + config.num_kv_heads)
    width = config.intermediate_size
    if config.experts is not None:
        width = config.experts.num_experts * config.experts.intermediate_size
    mlp = 3 * hidden * width
    return _DECODE_SHARE * config.vocab_size * hidden / (attention + mlp)


def plan_replica(
    options: CoordinatorOptions, config: ModelConfig, fingerprint: str, replica: int
) -> tuple[Assignment, ...]:
    """The assignments of a replica, by stage and rank.

    Raises `LayerSplitError`, `TooManyStagesError`, `RankCountError`, `TooManyRanksError` or
    `InvalidRequestError` for options that the model does not allow.
    """
    _check_options(options, config)
    head_cost = head_cost_in_layers(config)
    layers = options.layers or split_layers(config.num_layers, options.pp, head_cost)
    check_layers(layers, config.num_layers, options.pp)
    assignments = tuple(
        Assignment(
            replica=replica,
            stage=stage.stage,
            num_stages=options.pp,
            rank=rank,
            tp_size=tp_size,
            first_layer=stage.first_layer,
            num_layers=stage.num_layers,
            model=_path_for_workers(options.model),
            weights_fingerprint=fingerprint,
            dtype=options.dtype,
            block_size=options.block_size,
            max_model_len=options.max_model_len or config.max_position_embeddings,
            kv_memory_bytes=options.kv_memory_bytes,
        )
        for stage, tp_size in zip(make_plan(layers).stages, options.tp_sizes, strict=True)
        for rank in range(tp_size)
    )
    _check_kv_memory(assignments, config)
    return assignments


def resolve_dtype(
    assignments: tuple[Assignment, ...], config: ModelConfig, workers: Sequence[WorkerRecord]
) -> tuple[Assignment, ...]:
    """Replaces `auto`: the checkpoint's dtype if all workers compute it fast, else float32."""
    if assignments[0].dtype != AUTO_DTYPE:
        return assignments
    is_fast = all(config.torch_dtype in worker.identity.dtypes for worker in workers)
    return with_dtype(assignments, config.torch_dtype if is_fast else "float32")


def with_dtype(assignments: tuple[Assignment, ...], dtype: str) -> tuple[Assignment, ...]:
    return tuple(replace(assignment, dtype=dtype) for assignment in assignments)


def served_len(assigned_len: int, is_asked_for: bool, num_kv_blocks: int, block_size: int) -> int:
    """The longest sequence that both the model and the KV cache hold.

    Raises `NeverFitsError` if the user asked for more than the cache holds.
    """
    num_kv_tokens = num_kv_blocks * block_size
    if is_asked_for and assigned_len > num_kv_tokens:
        raise NeverFitsError(
            num_blocks_needed=-(-assigned_len // block_size), num_blocks=num_kv_blocks
        )
    return min(assigned_len, num_kv_tokens)


def _check_options(options: CoordinatorOptions, config: ModelConfig) -> None:
    asked, most = options.max_model_len, config.max_position_embeddings
    if asked is not None and not 2 <= asked <= most:
        problem = f"is {asked}; this model takes 2 to {most} tokens"
        raise InvalidRequestError(field="--max-model-len", problem=problem)
    if len(options.tp_sizes) != options.pp:
        raise RankCountError(ranks=options.tp, num_stages=options.pp)
    check_tp_size(config, max(options.tp_sizes))


def _check_kv_memory(assignments: Sequence[Assignment], config: ModelConfig) -> None:
    """Raises `InvalidRequestError` if not one block fits, before workers load their parts.

    A dtype of `auto` counts as two bytes.
    """
    for part in assignments:
        num_heads = -(-config.num_kv_heads // part.tp_size)
        token_bytes = 2 * part.num_layers * num_heads * config.head_dim * _bytes_of(part.dtype)
        if 0 < part.kv_memory_bytes < token_bytes * part.block_size:
            problem = (
                f"{part.kv_memory_bytes:,} bytes do not hold one KV block of stage {part.stage}, "
                f"whose {part.block_size} tokens take {token_bytes * part.block_size:,}; give more"
            )
            raise InvalidRequestError(field="--kv-memory", problem=problem)


def _bytes_of(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def _path_for_workers(model: str) -> str:
    """Makes a path absolute, so that it is valid in a worker's working directory."""
    path = Path(model).expanduser()
    return str(path.resolve()) if model != BUNDLED_MODEL and path.exists() else model
