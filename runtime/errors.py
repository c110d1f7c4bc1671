"""Declares every error once: its stable code, gRPC and HTTP status, fields and message.

It never imports grpc: statuses are names, and `runtime/rpc/error_interceptor.py` maps them.
Longer than other files because it is one list of declarations.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self, dataclass_transform


@dataclass_transform(kw_only_default=True, eq_default=False)
@dataclass(eq=False, kw_only=True)
class StagemeshError(Exception):
    """Raised when the mesh refuses or fails, with `code` for programs and `str()` for people.

    Subclasses become keyword-only dataclasses whose fields fill `template`. A class keyword that
    is left out is inherited.
    """

    code: ClassVar[str] = "internal"
    grpc_status: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 500
    # For `Retry-After` and `RetryInfo`; None if a retry would fail in the same way.
    retry_after_seconds: ClassVar[int | None] = None
    template: ClassVar[str] = "internal error"

    def __init_subclass__(
        cls,
        *,
        code: str | None = None,
        grpc: str | None = None,
        http: int | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init_subclass__()
        cls.code = code or cls.code
        cls.grpc_status = grpc or cls.grpc_status
        cls.http_status = http or cls.http_status
        if retry_after_seconds is not None:
            cls.retry_after_seconds = retry_after_seconds
        dataclass(eq=False, kw_only=True)(cls)

    def __str__(self) -> str:
        return self.template.format(**vars(self))


def find_error(exc: BaseException) -> StagemeshError | None:
    """The first `StagemeshError` in `exc`, which may be a (nested) exception group."""
    return next(find_errors(exc), None)


def find_errors(exc: BaseException) -> Iterator[StagemeshError]:
    """Every `StagemeshError` in `exc` and its nested groups, in the order of raising."""
    if isinstance(exc, StagemeshError):
        yield exc
    if isinstance(exc, BaseExceptionGroup):
        for each in exc.exceptions:
            yield from find_errors(each)


class BadRequestError(StagemeshError, code="bad_request", grpc="INVALID_ARGUMENT", http=400):
    """Raised when the sender must change its request."""


class SetupError(StagemeshError, code="setup", grpc="FAILED_PRECONDITION"):
    """Raised when a process cannot start or work with its options, files or machine."""


class BrokenModelError(StagemeshError, code="broken_model", grpc="FAILED_PRECONDITION"):
    """Raised when a model's files cannot be served."""


class ProtocolViolationError(StagemeshError, code="protocol_violation", grpc="FAILED_PRECONDITION"):
    """Raised when a peer's step or frame does not match the plan; it ends the epoch."""


class RefusedWorkerError(StagemeshError, code="refused_worker", grpc="FAILED_PRECONDITION"):
    """Raised when a worker cannot take part in this mesh."""


class LimitReachedError(
    StagemeshError, code="limit_reached", grpc="RESOURCE_EXHAUSTED", http=429, retry_after_seconds=1
):
    """Raised when a limit on concurrent requests or on rates is reached."""


class UnavailableError(
    StagemeshError, code="unavailable", grpc="UNAVAILABLE", http=503, retry_after_seconds=1
):
    """Raised when the same request may succeed later."""


# ---- models and checkpoints ----------------------------------------------------------------------


class ModelNotFoundError(StagemeshError, code="model_not_found", grpc="NOT_FOUND", http=404):
    """Raised when MODEL names nothing that can be loaded."""

    template = "model {model!r} not found: {hint}"
    model: str
    hint: str


class UnknownArchitectureError(BrokenModelError, code="unknown_architecture"):
    """Raised when no native decoder exists for the model's architecture."""

    template = "architecture {architecture!r} is not supported; supported: {known}"
    architecture: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return self.template.format(**vars(self) | {"known": ", ".join(self.known)})


class UnsafeCheckpointError(BrokenModelError, code="unsafe_checkpoint"):
    """Raised when a folder holds pickled weights (.bin, .pt) only; they are never read."""

    template = (
        "{folder} holds pickled weights only, which can run code when read and are refused; "
        "convert them to safetensors"
    )
    folder: str


class CheckpointError(BrokenModelError, code="checkpoint"):
    """Raised when weights are missing, truncated or have the wrong shape."""

    template = "checkpoint {folder}: {problem}; fetch or convert the model again"
    folder: str
    problem: str


class CacheError(SetupError, code="cache"):
    """Raised when the model cache cannot be written."""

    template = (
        "the cache {folder} cannot be written: {problem}; make it writable, make room there, "
        "or set STAGEMESH_CACHE to another folder"
    )
    folder: str
    problem: str


class ModelConfigError(BrokenModelError, code="model_config"):
    """Raised when a model's config.json is absent or holds a value that cannot be served."""

    template = "{folder}: {problem}"
    folder: str
    problem: str


class CanaryMismatchError(BrokenModelError, code="canary_mismatch"):
    """Raised when the pipeline's log-probabilities differ from those of the unsplit model."""

    template = (
        "the canary prompt's log-probabilities are off by {worst:.3g} (tolerance {tolerance:.3g}): "
        "this split does not compute the model, so it is not served; check that every worker has "
        "the same weights and build"
    )
    worst: float
    tolerance: float


# ---- plan and start ------------------------------------------------------------------------------


class LayerSplitError(BadRequestError, code="layer_split"):
    """Raised when explicit layer counts do not add up to the model's layers."""

    template = (
        "layers {layers} do not fit: give {num_stages} counts, each at least 1, "
        "that add up to the model's {num_layers}"
    )
    layers: tuple[int, ...]
    num_layers: int
    num_stages: int

    def __str__(self) -> str:
        return self.template.format(**vars(self) | {"layers": ",".join(map(str, self.layers))})


class RankCountError(BadRequestError, code="rank_count"):
    """Raised when there are neither one tensor-parallel size nor one for each stage."""

    template = "tp {ranks} names {num_named} stages of {num_stages}; give one number, or one each"
    ranks: tuple[int, ...]
    num_stages: int

    def __str__(self) -> str:
        ranks = ",".join(map(str, self.ranks))
        return self.template.format(
            ranks=ranks, num_named=len(self.ranks), num_stages=self.num_stages
        )


class TooManyStagesError(BadRequestError, code="too_many_stages"):
    """Raised when there are more stages than layers."""

    template = "{num_stages} stages for {num_layers} layers; use at most {num_layers} stages"
    num_layers: int
    num_stages: int


class TooManyRanksError(BadRequestError, code="too_many_ranks"):
    """Raised when a stage has more tensor-parallel ranks than the model has key/value heads."""

    template = (
        "{tp_size} ranks a stage for {num_kv_heads} key/value heads ({num_heads} query heads): "
        "each rank needs one; use at most {max_tp_size} ranks"
    )
    tp_size: int
    num_heads: int
    num_kv_heads: int
    max_tp_size: int


class PortTakenError(SetupError, code="port_taken"):
    """Raised when the process cannot listen on an address."""

    template = "cannot listen on {address}: {problem}"
    address: str
    problem: str = "it is in use; stop what uses it or choose another port"


class UnprotectedApiError(SetupError, code="unprotected_api"):
    """Raised when an API would serve other machines without API keys."""

    template = (
        "other machines could use {address} without an API key: name a file of keys with "
        "--api-keys FILE (stagemesh keys add NAME --api-keys FILE makes one), listen on 127.0.0.1, "
        "or give --allow-anonymous"
    )
    address: str


class KeyFileError(SetupError, code="key_file"):
    """Raised when the file of API keys cannot be used."""

    template = "API keys {path}: {problem}"
    path: str
    problem: str


class CertificateError(SetupError, code="certificate"):
    """Raised when a certificate, key or authority cannot be used."""

    template = "{path}: {problem}; make another with `stagemesh certs`"
    path: str
    problem: str


class InsecureMeshError(SetupError, code="insecure_mesh"):
    """Raised when other machines could use a mesh address without TLS."""

    template = (
        "{option} {address} is open to other machines, and without TLS any of them can control "
        "and read the mesh: make certificates with `stagemesh certs` and give --tls-dir, or give "
        "--insecure-mesh in a network that you trust"
    )
    option: str
    address: str


class NotEnoughMemoryError(StagemeshError, code="not_enough_memory", grpc="RESOURCE_EXHAUSTED"):
    """Raised when a stage's weights or KV cache do not fit the device."""

    template = (
        "{what} needs {needed_bytes:,} bytes but {available_bytes:,} are available; "
        "use more stages, a smaller --kv-memory or a smaller --max-model-len"
    )
    needed_bytes: int
    available_bytes: int
    what: str


# ---- requests ------------------------------------------------------------------------------------


class EmptyPromptError(BadRequestError, code="empty_prompt"):
    """Raised when a prompt has no tokens."""

    template = "prompt {index} is empty; send at least one token"
    index: int


class PromptTooLongError(BadRequestError, code="prompt_too_long"):
    """Raised when a prompt alone exceeds the served context length."""

    template = "the prompt has {count} tokens, but at most {max_tokens} fit; shorten it"
    num_tokens: int
    max_tokens: int
    # Derived from the text's length alone: `num_tokens` is a lower bound.
    is_minimum: bool = False

    def __str__(self) -> str:
        count = f"at least {self.num_tokens}" if self.is_minimum else self.num_tokens
        return self.template.format(count=count, max_tokens=self.max_tokens)


class NeverFitsError(BadRequestError, code="never_fits"):
    """Raised when a request needs more KV blocks than the whole cache has."""

    template = (
        "the request needs {num_blocks_needed} KV blocks but the cache has {num_blocks}; "
        "shorten the prompt, lower max_tokens, or serve with a larger --kv-memory"
    )
    num_blocks_needed: int
    num_blocks: int


class UnknownModelError(BadRequestError, code="unknown_model", grpc="NOT_FOUND", http=404):
    """Raised when a request names a model that is not served."""

    template = "model {model!r} is not served here; request {served!r} or leave it empty"
    model: str
    served: str


class InvalidRequestError(BadRequestError, code="invalid_request"):
    """Raised when a request's field has an invalid value."""

    template = "{field}: {problem}"
    field: str
    problem: str


class UnsupportedParameterError(BadRequestError, code="unsupported_parameter"):
    """Raised when a request has a parameter that this server does not know or support."""

    template = "{field}: {problem}"
    field: str
    problem: str


class UnknownRouteError(BadRequestError, code="unknown_route", grpc="UNIMPLEMENTED", http=404):
    """Raised when an HTTP request's path does not exist."""

    template = "there is no {path}; see /v1/models for what is served"
    path: str


class MethodNotAllowedError(
    BadRequestError, code="method_not_allowed", grpc="UNIMPLEMENTED", http=405
):
    """Raised when an HTTP request's path does not support its method."""

    template = "{path} does not support {method}; use {allowed}"
    path: str
    method: str
    allowed: str


class RequestTooLargeError(BadRequestError, code="request_too_large", http=413):
    """Raised when a request's body or message exceeds the API's size limit."""

    template = "the request exceeds {max_bytes:,} bytes; send less, or raise --max-request-size"
    max_bytes: int


class UnsupportedMediaTypeError(BadRequestError, code="unsupported_media_type", http=415):
    """Raised when an HTTP request's body is not declared to be JSON."""

    template = "send JSON with the header content-type: application/json, not {actual!r}"
    actual: str


class SlowRequestError(BadRequestError, code="slow_request", grpc="DEADLINE_EXCEEDED", http=408):
    """Raised when an HTTP request's body does not arrive in time."""

    template = "the body did not arrive within {seconds:g} s"
    seconds: float


class TokenOutOfVocabularyError(BadRequestError, code="token_out_of_vocabulary"):
    """Raised when a prompt holds a token id that the model does not have."""

    template = "token id {token_id} is outside the vocabulary of {vocab_size} tokens"
    token_id: int
    vocab_size: int


class ChatTemplateError(BadRequestError, code="chat_template"):
    """Raised when the model's chat template is missing or refuses the messages."""

    template = "chat template: {problem}"
    problem: str


class GrammarError(BadRequestError, code="grammar"):
    """Raised when a structured output's grammar fails during generation."""

    template = "structured output: {problem}; send a simpler schema, regex or choice"
    problem: str


class QueueFullError(LimitReachedError, code="queue_full"):
    """Raised when the queue of waiting requests is full."""

    template = "{num_waiting} requests wait already (limit {limit}); try again in {wait_seconds} s"
    num_waiting: int
    limit: int
    # Estimated from the recent rate at which the queue became shorter.
    wait_seconds: int = 1

    @property
    def retry_after_seconds(self) -> int:  # type: ignore[override]  # varies per instance
        """The estimated time until the queue has room."""
        return self.wait_seconds


class UnauthenticatedError(
    BadRequestError, code="invalid_api_key", grpc="UNAUTHENTICATED", http=401
):
    """Raised when a call of a protected API has no API key or an unknown one."""

    template = "{problem}; send an API key, as authorization: Bearer KEY"
    problem: str


class TooManyInFlightError(LimitReachedError, code="too_many_in_flight"):
    """Raised when an API key has reached its limit of requests in flight."""

    template = (
        "this API key has reached its limit of {limit} requests in flight; wait until one ends"
    )
    limit: int


class TokenRateError(LimitReachedError, code="token_rate_exceeded"):
    """Raised when an API key has used its tokens per minute."""

    template = (
        "this API key has used its {tokens_per_minute} tokens a minute; "
        "try again in {wait_seconds} s"
    )
    tokens_per_minute: int
    wait_seconds: int

    @property
    def retry_after_seconds(self) -> int:  # type: ignore[override]  # varies per instance
        """Whole seconds until the key may send requests again."""
        return self.wait_seconds


class TooManyLogprobsError(LimitReachedError, code="too_many_logprobs"):
    """Raised when all requests together would exceed the limit on log-probabilities."""

    template = (
        "{num_logprobs} log-probabilities per token, together with the {num_others} of other "
        "requests, exceed the limit of {limit}; request fewer, or try again later"
    )
    num_logprobs: int
    num_others: int
    limit: int


class NotReadyError(UnavailableError, code="not_ready"):
    """Raised when the mesh does not serve yet."""

    template = "the mesh is not ready ({phase}); try again shortly"
    phase: str


class DeadlineExceededError(
    StagemeshError, code="deadline_exceeded", grpc="DEADLINE_EXCEEDED", http=504
):
    """Raised when a request's deadline passes before it finishes."""

    template = "the deadline passed before the request was finished; allow more time"


class RequestCancelledError(StagemeshError, code="request_cancelled", grpc="CANCELLED", http=499):
    """Raised when the client cancels the request or disconnects."""

    template = "the request was cancelled by its client"


class ShuttingDownError(UnavailableError, code="shutting_down"):
    """Raised when the server stops and accepts no more requests."""

    template = "the server is shutting down; send the request elsewhere or later"


class RequestsFailedError(StagemeshError, code="requests_failed"):
    """Raised when requests of a load test fail."""

    template = "{num_failed} of {num_requests} requests failed, the first with: {first}"
    num_failed: int
    num_requests: int
    first: str


# ---- steps and frames ----------------------------------------------------------------------------


class StepGapError(ProtocolViolationError, code="step_gap"):
    """Raised when a step does not follow the one before it."""

    template = "expected step {expected}, got step {actual}"
    expected: int
    actual: int


class StaleEpochError(ProtocolViolationError, code="stale_epoch"):
    """Raised when a message belongs to another epoch."""

    template = "expected epoch {expected}, got epoch {actual}"
    expected: str
    actual: str


class PositionError(ProtocolViolationError, code="position"):
    """Raised when a chunk does not start where its slot's KV cache ends."""

    template = "slot {slot}: expected position {expected}, got {actual}"
    slot: int
    expected: int
    actual: int


class FrameError(ProtocolViolationError, code="frame"):
    """Raised when a frame's shape, dtype, size, offset or interval does not fit the plan."""

    template = "{what}: expected {expected}, got {actual}"
    what: str
    expected: object
    actual: object


class WindowExceededError(ProtocolViolationError, code="window_exceeded"):
    """Raised when a sender has more steps outstanding than credits."""

    template = "step {step} exceeds the window of {window} outstanding steps"
    step: int
    window: int


class SlotError(ProtocolViolationError, code="slot"):
    """Raised when a step opens, uses or releases a slot in the wrong state."""

    template = "slot {slot}: {problem}"
    slot: int
    problem: str


class BlockError(ProtocolViolationError, code="block"):
    """Raised when a step's block ids are out of range, in use or too few."""

    template = "slot {slot}, KV block {block}: {problem}"
    slot: int
    block: int
    problem: str


class HeaderMismatchError(ProtocolViolationError, code="header_mismatch"):
    """Raised when two ranks of a stage receive different headers, by all of its ranks."""

    template = "the header of rank {rank} is not that of rank 0: expected {expected}, got {actual}"
    rank: int
    expected: str
    actual: str


class SharedMemoryError(StagemeshError, code="shared_memory", grpc="RESOURCE_EXHAUSTED"):
    """Raised when a rank cannot map the shared memory of its stage's ranks."""

    template = (
        "{num_bytes:,} bytes at {path}, which the ranks of a stage share, cannot be allocated: "
        "{problem}, {available_bytes:,} bytes are free; make room there (in a container: docker's "
        "--shm-size)"
    )
    path: str
    num_bytes: int
    available_bytes: int
    problem: str


class CollectiveTimeoutError(UnavailableError, code="collective_timeout"):
    """Raised when another rank of the stage does not enter a collective in time."""

    template = (
        "rank {rank} waited {seconds:g} s for {missing} in {what}; ranks of a stage must run on "
        "one host and share its /dev/shm"
    )
    rank: int
    missing: str
    what: str
    seconds: float


class NonFiniteLogitsError(StagemeshError, code="non_finite_logits"):
    """Raised when the model computes NaN or infinite logits; it ends the epoch."""

    template = "slot {slot}: the logits are not finite; use --dtype float32, or check the weights"
    slot: int


class EpochEndedError(UnavailableError, code="epoch_ended"):
    """Raised when a call's epoch has ended; `cause` is the first error's code."""

    template = "the epoch ended ({cause}): {detail}"
    cause: str
    detail: str

    @classmethod
    def caused_by(cls, error: StagemeshError, source: str = "") -> Self:
        """The end of an epoch by `error`, reported by `source`; an earlier end keeps its cause."""
        if isinstance(error, EpochEndedError):
            cause, detail = error.cause, error.detail
        else:
            cause, detail = error.code, str(error)
        return cls(cause=cause, detail=f"{source}: {detail}" if source else detail)


class NextStageError(EpochEndedError):
    """Raised when the stream to the next stage at `address` does not open, or ends."""

    address: str


class StageFailedError(EpochEndedError):
    """Raised when a stage reports a failure or stops responding; `workers` are its ranks."""

    workers: tuple[str, ...]


# ---- workers -------------------------------------------------------------------------------------


class WorkerRefusedError(RefusedWorkerError, code="worker_refused"):
    """Raised when a worker refuses its assignment, or the coordinator refuses its hello."""

    template = "worker {worker} refused: {reason}"
    worker: str
    reason: str


class WorkerFailedError(UnavailableError, code="worker_failed"):
    """Raised when a worker fails a call; another worker or another attempt may succeed."""

    template = "worker {worker} failed: {reason}"
    worker: str
    reason: str


class ProtocolVersionError(RefusedWorkerError, code="protocol_version"):
    """Raised when worker and coordinator have different protocol versions."""

    template = (
        "protocol version {actual} does not match this mesh's {expected}; "
        "run the same build of stagemesh everywhere"
    )
    expected: int
    actual: int


class FingerprintMismatchError(RefusedWorkerError, code="fingerprint_mismatch"):
    """Raised when a worker's checkpoint is not the coordinator's."""

    template = (
        "weights fingerprint {actual} does not match the coordinator's {expected}; "
        "put the same model files on every node"
    )
    expected: str
    actual: str


class AssignmentError(RefusedWorkerError, code="assignment"):
    """Raised when a call does not match the part of the model that this worker holds."""

    template = "expected assignment {expected}, got {actual}"
    expected: str
    actual: str


class ForbiddenPeerError(StagemeshError, code="forbidden_peer", grpc="PERMISSION_DENIED", http=403):
    """Raised when the role in a caller's certificate may not call a method of the mesh."""

    template = "{what} requires the role {expected}, but the caller's certificate has {actual}"
    what: str
    expected: str
    actual: str


class WorkerDiedError(UnavailableError, code="worker_died"):
    """Raised when a worker's process or connection is gone."""

    template = "worker {worker} is gone: {detail}"
    worker: str
    detail: str


class LinkBrokenError(UnavailableError, code="link_broken"):
    """Raised when one worker cannot connect to another; which of the two is at fault is unknown."""

    template = (
        "worker {worker} does not reach worker {peer}: {detail}; "
        "workers must reach each other at the addresses that they --listen on or --advertise"
    )
    worker: str
    peer: str
    detail: str


class DeviceStuckError(UnavailableError, code="device_stuck"):
    """Raised when the device is still busy long after its epoch's end; it ends the process."""

    template = (
        "the device is still busy {seconds:g} s after the epoch's end, most likely in a collective "
        "whose other ranks are gone; this process exits so that it can be restarted"
    )
    seconds: float


class LaunchError(StagemeshError, code="launch"):
    """Raised when the processes of a mesh on one machine cannot be started or kept running."""

    template = "{problem}"
    problem: str
