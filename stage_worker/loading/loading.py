"""Turns an assignment into a loaded stage: finds, checks and reads the model's files.

All functions block. Refusals are typed and, where the assignment or the file headers suffice,
raised before any weights are read.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from protos import stage_pb2
from runtime.checkpoints.checkpoint import Checkpoint
from runtime.checkpoints.model_store import check_gguf, find_model, resolve_model
from runtime.errors import (
    AssignmentError,
    FingerprintMismatchError,
    InvalidRequestError,
)
from runtime.host.logs import get_logger
from runtime.model_config.model_config import load_model_config
from runtime.model_config.tensor_parallel import check_tp_size
from stage_worker.device.progress import ProgressFn
from stage_worker.execution.simulated_stage import (
    AnyStage,
    SimulatedStage,
    SimulatedStageSpec,
    StepTimeModel,
    simulated_logprobs,
)
from stage_worker.execution.stage_runner import StageRunner
from stage_worker.execution.stage_spec import StageSpec
from stage_worker.loading.assignment_checks import (
    DTYPE_NAMES,
    check_assignment,
    check_kv_memory,
    check_layers,
)
from stage_worker.loading.reference_logprobs import reference_logprobs

# The prompt is one chunk, and attention memory grows with the square of its length.
_MAX_CANARY_TOKENS = 1024

# Of a fingerprint in the log.
_SHOWN_DIGITS = 16

_log = get_logger()


@dataclass(frozen=True, slots=True)
class WorkerDevice:
    """The device of a worker; `model_path` replaces the assignment's model.

    With `step_times` the worker computes nothing and takes the modelled time. `num_sharers` is the
    number of workers that share the device, this one included.
    """

    kind: str
    num_threads: int
    model_path: str | None = None
    step_times: StepTimeModel | None = None
    num_sharers: int = 1


@dataclass(frozen=True, slots=True)
class ResolvedAssignment:
    """An assignment that has passed the checks of numbers and files, and its checkpoint."""

    assignment: stage_pb2.Assignment
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class LoadedStage:
    """An assignment whose weights are in memory."""

    assignment: stage_pb2.Assignment
    stage: AnyStage
    fingerprint: str
    num_kv_blocks: int
    load_seconds: float


def check_model_path(model: str) -> None:
    """Checks `--model-path` at the start, as far as that is cheap.

    Reads config.json and the headers of the weights, or the magic number of a .gguf file; a Hub id
    is not checked, because it may need a download. Whether the weights are those of the mesh is
    checked by fingerprint when a stage is assigned; the fingerprint is logged here. Raises
    `ModelNotFoundError` or `BrokenModelError`.
    """
    path = find_model(model)
    if path is not None and path.is_dir():
        config, checkpoint = load_model_config(path), Checkpoint.open(path)
        _log.info(
            "model_found",
            folder=str(path),
            architecture=config.family.architecture,
            num_layers=config.num_layers,
            fingerprint=checkpoint.fingerprint[:_SHOWN_DIGITS],
        )
    elif path is not None:
        check_gguf(path)


def resolve_assignment(
    assignment: stage_pb2.Assignment, device: WorkerDevice, progress: ProgressFn
) -> ResolvedAssignment:
    """Finds the model's files and checks the assignment against them; uses no device.

    `progress` gets the done and total amounts of a conversion or a download.
    """
    check_assignment(assignment)
    check_kv_memory(assignment.kv_memory_bytes, device.kind)
    checkpoint = _find_model(
        device.model_path or assignment.model, assignment.weights_fingerprint, progress
    )
    config = load_model_config(checkpoint.folder)
    check_tp_size(config, assignment.tp_size)
    check_layers(assignment, config.num_layers)
    if assignment.max_model_len > config.max_position_embeddings:
        raise AssignmentError(
            expected=f"max_model_len up to {config.max_position_embeddings}",
            actual=str(assignment.max_model_len),
        )
    return ResolvedAssignment(assignment, checkpoint)


def is_same_work(held: stage_pb2.Assignment, requested: stage_pb2.Assignment) -> bool:
    """Whether the assignments differ at most in their replica."""
    same = stage_pb2.Assignment()
    same.CopyFrom(held)
    same.replica = requested.replica
    return same == requested


def load_stage(
    resolved: ResolvedAssignment, device: WorkerDevice, progress: ProgressFn
) -> LoadedStage:
    """Loads this rank's weights; `progress` gets done and total bytes."""
    begun_at = time.monotonic()
    stage = _load_stage(resolved, device, progress)
    return LoadedStage(
        resolved.assignment,
        stage,
        resolved.checkpoint.fingerprint,
        num_kv_blocks=stage.kv_block_capacity(),
        load_seconds=time.monotonic() - begun_at,
    )


def _load_stage(
    resolved: ResolvedAssignment, device: WorkerDevice, progress: ProgressFn
) -> AnyStage:
    assignment, spec = resolved.assignment, _stage_spec(resolved.assignment, device)
    if device.step_times is None:
        return StageRunner.load(resolved.checkpoint, spec, progress)
    config = load_model_config(resolved.checkpoint.folder)
    part = SimulatedStageSpec(assignment.stage, assignment.num_layers / config.num_layers)
    return SimulatedStage(spec, config, part, device.step_times)


def compute_reference_logprobs(
    request: stage_pb2.RecordCanaryRequest, device: WorkerDevice, progress: ProgressFn
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The unsplit model's most likely next tokens and their log-probabilities, in order.

    `progress` gets done and total layers.
    """
    if not request.token_ids:
        raise InvalidRequestError(field="token_ids", problem="must not be empty")
    if len(request.token_ids) > _MAX_CANARY_TOKENS:
        problem = f"{len(request.token_ids)} given, at most {_MAX_CANARY_TOKENS} are taken"
        raise InvalidRequestError(field="token_ids", problem=problem)
    checkpoint = _find_model(
        device.model_path or request.model, request.weights_fingerprint, progress
    )
    if device.step_times is not None:
        vocab_size = load_model_config(checkpoint.folder).vocab_size
        last_token, position = request.token_ids[-1], len(request.token_ids)
        return simulated_logprobs(last_token, position, vocab_size, request.num_logprobs)
    return reference_logprobs(
        checkpoint, request.token_ids, request.num_logprobs, progress, request.max_model_len
    )


def _find_model(model: str, fingerprint: str, progress: ProgressFn) -> Checkpoint:
    checkpoint = Checkpoint.open(resolve_model(model, progress=_without_phase(progress)))
    actual = checkpoint.fingerprint
    if fingerprint and actual != fingerprint:
        raise FingerprintMismatchError(expected=fingerprint, actual=actual)
    return checkpoint


def _without_phase(progress: ProgressFn) -> Callable[[str, int, int], None]:
    return lambda _phase, done, total: progress(done, total)


def _stage_spec(assignment: stage_pb2.Assignment, device: WorkerDevice) -> StageSpec:
    return StageSpec(
        first_layer=assignment.first_layer,
        num_layers=assignment.num_layers,
        is_first=assignment.stage == 0,
        is_last=assignment.stage == assignment.num_stages - 1,
        dtype=DTYPE_NAMES[assignment.dtype],
        block_size=assignment.block_size,
        max_model_len=assignment.max_model_len,
        kv_memory_bytes=assignment.kv_memory_bytes,
        num_threads=device.num_threads,
        device="cpu" if device.step_times else device.kind,
        rank=assignment.rank,
        tp_size=assignment.tp_size,
        num_sharers=device.num_sharers,
    )
