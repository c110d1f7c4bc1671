"""Owns every error of the mesh, once: its stable code, its statuses and its fields.

It never imports grpc: statuses are names, and `runtime/rpc/channels.py` maps them.
Longer than other files because one list is the point: a reader finds here all that can go wrong,
and nothing twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self


@dataclass(eq=False, kw_only=True)
class StagemeshError(Exception):
    """Raised when the mesh refuses or fails, with `code` for programs and `str()` for people.

    Subclasses are keyword-only dataclasses whose `template` is filled from their fields.
    """

    code: ClassVar[str] = "internal"
    grpc_status: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 500
    # When it makes sense to try again, for `Retry-After` and `RetryInfo`; None: it makes none.
    retry_after_seconds: ClassVar[int | None] = None
    template: ClassVar[str] = "internal error"

    def __str__(self) -> str:
        return self.template.format(**vars(self))


def find_error(exc: BaseException) -> StagemeshError | None:
    """The first `StagemeshError` in `exc`, looking into the exception groups of task groups."""
    return next(find_errors(exc), None)


def find_errors(exc: BaseException) -> Iterator[StagemeshError]:
    """Every `StagemeshError` in `exc`, likewise, in the order in which they were raised."""
    if isinstance(exc, StagemeshError):
        yield exc
    if isinstance(exc, BaseExceptionGroup):
        for each in exc.exceptions:
            yield from find_errors(each)


class BadRequestError(StagemeshError):
    """Raised when the sender must change what it sends."""

    code = "bad_request"
    grpc_status = "INVALID_ARGUMENT"
    http_status = 400


class BrokenModelError(StagemeshError):
    """Raised when a model's files cannot be served as they are."""

    code = "broken_model"
    grpc_status = "FAILED_PRECONDITION"


class BrokenRuleError(StagemeshError):
    """Raised when a peer's step or frame does not fit the plan; it ends the epoch."""

    code = "broken_rule"
    grpc_status = "FAILED_PRECONDITION"


class RefusedWorkerError(StagemeshError):
    """Raised when a worker cannot take part in this mesh as it is."""

    code = "refused_worker"
    grpc_status = "FAILED_PRECONDITION"


class UnavailableError(StagemeshError):
    """Raised when the same request may work later."""

    code = "unavailable"
    grpc_status = "UNAVAILABLE"
    http_status = 503
    retry_after_seconds = 1


# ---- models and checkpoints ----------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class ModelNotFoundError(StagemeshError):
    """Raised when MODEL names nothing that can be loaded."""

    code = "model_not_found"
    grpc_status = "NOT_FOUND"
    http_status = 404
    template = "model {model!r} not found: {hint}"
    model: str
    hint: str


@dataclass(eq=False, kw_only=True)
class UnknownArchitectureError(BrokenModelError):
    """Raised when no native decoder exists for the model's architecture."""

    code = "unknown_architecture"
    template = "architecture {architecture!r} is not supported; supported: {known}"
    architecture: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return self.template.format(architecture=self.architecture, known=", ".join(self.known))


@dataclass(eq=False, kw_only=True)
class UnsafeCheckpointError(BrokenModelError):
    """Raised when a folder holds pickled weights (.bin, .pt) only; they are never read."""

    code = "unsafe_checkpoint"
    template = (
        "{folder} holds pickled weights only, which can run code when read and are refused; "
        "convert them to safetensors"
    )
    folder: str


@dataclass(eq=False, kw_only=True)
class CheckpointError(BrokenModelError):
    """Raised when weights are missing, misshapen or cut short."""

    code = "checkpoint"
    template = "checkpoint {folder}: {problem}; fetch or convert the model again"
    folder: str
    problem: str


@dataclass(eq=False, kw_only=True)
class CacheError(StagemeshError):
    """Raised when the cache of models cannot be written."""

    code = "cache"
    grpc_status = "FAILED_PRECONDITION"
    template = (
        "the cache {folder} cannot be written: {problem}; make it writable, make room there, "
        "or set STAGEMESH_CACHE to another folder"
    )
    folder: str
    problem: str


@dataclass(eq=False, kw_only=True)
class ModelConfigError(BrokenModelError):
    """Raised when a model's config.json is absent or holds a value that cannot be served."""

    code = "model_config"
    template = "{folder}: {problem}"
    folder: str
    problem: str


@dataclass(eq=False, kw_only=True)
class CanaryMismatchError(BrokenModelError):
    """Raised when the route's log-probabilities differ from those of the model in one piece."""

    code = "canary_mismatch"
    template = (
        "the canary prompt's log-probabilities are off by {worst:.3g} (tolerance {tolerance:.3g}): "
        "this split does not compute the model, so it is not served; check that every worker has "
        "the same weights and build"
    )
    worst: float
    tolerance: float


# ---- plan and start ------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class LayerSplitError(BadRequestError):
    """Raised when explicit layer counts do not make the model up."""

    code = "layer_split"
    template = (
        "layers {layers} do not fit: give {num_stages} counts, each at least 1, "
        "that add up to the model's {num_layers}"
    )
    layers: tuple[int, ...]
    num_layers: int
    num_stages: int

    def __str__(self) -> str:
        counts = ",".join(str(count) for count in self.layers)
        return self.template.format(
            layers=counts, num_stages=self.num_stages, num_layers=self.num_layers
        )


@dataclass(eq=False, kw_only=True)
class RankCountError(BadRequestError):
    """Raised when ranks are named for other than all stages."""

    code = "rank_count"
    template = "tp {ranks} names {num_named} stages of {num_stages}; give one number, or one each"
    ranks: tuple[int, ...]
    num_stages: int

    def __str__(self) -> str:
        counts = ",".join(str(count) for count in self.ranks)
        return self.template.format(
            ranks=counts, num_named=len(self.ranks), num_stages=self.num_stages
        )


@dataclass(eq=False, kw_only=True)
class TooManyStagesError(BadRequestError):
    """Raised when there are more stages than layers."""

    code = "too_many_stages"
    template = "{num_stages} stages for {num_layers} layers; use at most {num_layers} stages"
    num_layers: int
    num_stages: int


@dataclass(eq=False, kw_only=True)
class TooManyRanksError(BadRequestError):
    """Raised when a stage has more tensor-parallel ranks than the model has key/value heads."""

    code = "too_many_ranks"
    template = (
        "{tp_size} ranks a stage for {num_kv_heads} key/value heads ({num_heads} query heads): "
        "each rank needs one; use at most {max_tp_size} ranks"
    )
    tp_size: int
    num_heads: int
    num_kv_heads: int
    max_tp_size: int


@dataclass(eq=False, kw_only=True)
class PortTakenError(StagemeshError):
    """Raised when an address cannot be listened on."""

    code = "port_taken"
    grpc_status = "FAILED_PRECONDITION"
    template = "cannot listen on {address}: {problem}"
    address: str
    problem: str = "it is in use; stop what uses it or choose another port"


@dataclass(eq=False, kw_only=True)
class UnprotectedApiError(StagemeshError):
    """Raised when an API would serve other machines without asking for an API key."""

    code = "unprotected_api"
    grpc_status = "FAILED_PRECONDITION"
    template = (
        "other machines could use {address} without an API key: name a file of keys with "
        "--api-keys FILE (stagemesh keys add NAME --api-keys FILE makes one), listen on 127.0.0.1, "
        "or say --allow-anonymous"
    )
    address: str


@dataclass(eq=False, kw_only=True)
class KeyFileError(StagemeshError):
    """Raised when the file of API keys cannot be used as it is."""

    code = "key_file"
    grpc_status = "FAILED_PRECONDITION"
    template = "API keys {path}: {problem}"
    path: str
    problem: str


@dataclass(eq=False, kw_only=True)
class CertificateError(StagemeshError):
    """Raised when a certificate, key or authority cannot be used."""

    code = "certificate"
    grpc_status = "FAILED_PRECONDITION"
    template = "{path}: {problem}; make another with `stagemesh certs`"
    path: str
    problem: str


@dataclass(eq=False, kw_only=True)
class InsecureMeshError(StagemeshError):
    """Raised when a link of the mesh would be open to others without TLS, and nobody said so."""

    code = "insecure_mesh"
    grpc_status = "FAILED_PRECONDITION"
    template = (
        "{option} {address} is open to other machines, and without TLS whoever reaches it can run "
        "and read the mesh: make certificates with `stagemesh certs` and give --tls-dir, or give "
        "--insecure-mesh in a network that you trust"
    )
    option: str
    address: str


@dataclass(eq=False, kw_only=True)
class NotEnoughMemoryError(StagemeshError):
    """Raised when a stage's weights or KV cache do not fit the device."""

    code = "not_enough_memory"
    grpc_status = "RESOURCE_EXHAUSTED"
    template = (
        "{what} needs {needed_bytes:,} bytes but {available_bytes:,} are available; "
        "use more stages, a smaller --kv-memory or a smaller --max-model-len"
    )
    needed_bytes: int
    available_bytes: int
    what: str


# ---- requests ------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class EmptyPromptError(BadRequestError):
    """Raised when a prompt has no tokens."""

    code = "empty_prompt"
    template = "prompt {index} is empty; send at least one token"
    index: int


@dataclass(eq=False, kw_only=True)
class PromptTooLongError(BadRequestError):
    """Raised when a prompt alone exceeds what the served model's context takes."""

    code = "prompt_too_long"
    template = "the prompt has {count} tokens, but at most {max_tokens} fit; shorten it"
    num_tokens: int
    max_tokens: int
    # Told from the text's length alone: `num_tokens` is the fewest that it can have.
    is_minimum: bool = False

    def __str__(self) -> str:
        count = f"at least {self.num_tokens}" if self.is_minimum else self.num_tokens
        return self.template.format(count=count, max_tokens=self.max_tokens)


@dataclass(eq=False, kw_only=True)
class NeverFitsError(BadRequestError):
    """Raised when a request needs more KV blocks than the whole cache has."""

    code = "never_fits"
    template = (
        "the request needs {num_blocks_needed} KV blocks but the cache has {num_blocks}; "
        "shorten the prompt, lower max_tokens, or serve with a larger --kv-memory"
    )
    num_blocks_needed: int
    num_blocks: int


@dataclass(eq=False, kw_only=True)
class UnknownModelError(BadRequestError):
    """Raised when a request names a model that is not the served one."""

    code = "unknown_model"
    grpc_status = "NOT_FOUND"
    http_status = 404
    template = "model {model!r} is not served here; ask for {served!r} or leave it empty"
    model: str
    served: str


@dataclass(eq=False, kw_only=True)
class InvalidRequestError(BadRequestError):
    """Raised when a request's field has a value that cannot be used."""

    code = "invalid_request"
    template = "{field}: {problem}"
    field: str
    problem: str


@dataclass(eq=False, kw_only=True)
class UnsupportedParameterError(BadRequestError):
    """Raised when a request names a parameter that this server does not know or not offer."""

    code = "unsupported_parameter"
    template = "{field}: {problem}"
    field: str
    problem: str


@dataclass(eq=False, kw_only=True)
class UnknownRouteError(BadRequestError):
    """Raised when an HTTP request asks for a path that is not there."""

    code = "unknown_route"
    grpc_status = "UNIMPLEMENTED"
    http_status = 404
    template = "there is no {path}; see /v1/models for what is served"
    path: str


@dataclass(eq=False, kw_only=True)
class MethodNotAllowedError(BadRequestError):
    """Raised when an HTTP request uses a method that its path does not take."""

    code = "method_not_allowed"
    grpc_status = "UNIMPLEMENTED"
    http_status = 405
    template = "{path} takes no {method}; use {allowed}"
    path: str
    method: str
    allowed: str


@dataclass(eq=False, kw_only=True)
class RequestTooLargeError(BadRequestError):
    """Raised when a request's body or message exceeds the limit of its API."""

    code = "request_too_large"
    http_status = 413
    template = "the request exceeds {max_bytes:,} bytes; send less, or raise --max-request-size"
    max_bytes: int


@dataclass(eq=False, kw_only=True)
class UnsupportedMediaTypeError(BadRequestError):
    """Raised when an HTTP request's body is not declared to be JSON."""

    code = "unsupported_media_type"
    http_status = 415
    template = "send JSON with the header content-type: application/json, not {actual!r}"
    actual: str


@dataclass(eq=False, kw_only=True)
class SlowRequestError(BadRequestError):
    """Raised when an HTTP request's body does not arrive in time."""

    code = "slow_request"
    grpc_status = "DEADLINE_EXCEEDED"
    http_status = 408
    template = "the body did not arrive within {seconds:g} s"
    seconds: float


@dataclass(eq=False, kw_only=True)
class TokenOutOfVocabularyError(BadRequestError):
    """Raised when a prompt holds a token id that the model does not have."""

    code = "token_out_of_vocabulary"
    template = "token id {token_id} is outside the vocabulary of {vocab_size} tokens"
    token_id: int
    vocab_size: int


@dataclass(eq=False, kw_only=True)
class ChatTemplateError(BadRequestError):
    """Raised when the model's chat template is missing or refuses the messages."""

    code = "chat_template"
    template = "chat template: {problem}"
    problem: str


@dataclass(eq=False, kw_only=True)
class GrammarError(BadRequestError):
    """Raised when the grammar of a structured output fails while an answer is generated."""

    code = "grammar"
    template = "structured output: {problem}; send a simpler schema, regex or choice"
    problem: str


@dataclass(eq=False, kw_only=True)
class QueueFullError(StagemeshError):
    """Raised when too many requests wait already."""

    code = "queue_full"
    grpc_status = "RESOURCE_EXHAUSTED"
    http_status = 429
    template = "{num_waiting} requests wait already (limit {limit}); try again in {wait_seconds} s"
    num_waiting: int
    limit: int
    # By how fast the line got shorter lately.
    wait_seconds: int = 1

    @property
    def retry_after_seconds(self) -> int:  # type: ignore[override]  # no constant here
        """When there will probably be room."""
        return self.wait_seconds


@dataclass(eq=False, kw_only=True)
class UnauthenticatedError(BadRequestError):
    """Raised when an API that asks for API keys gets none, or one that it does not know."""

    code = "invalid_api_key"
    grpc_status = "UNAUTHENTICATED"
    http_status = 401
    template = "{problem}; send an API key, as authorization: Bearer KEY"
    problem: str


@dataclass(eq=False, kw_only=True)
class TooManyInFlightError(StagemeshError):
    """Raised when one API key has as many requests under way as it may."""

    code = "too_many_in_flight"
    grpc_status = "RESOURCE_EXHAUSTED"
    http_status = 429
    retry_after_seconds = 1
    template = "this API key has {limit} requests under way, as many as it may; wait for one's end"
    limit: int


@dataclass(eq=False, kw_only=True)
class TokenRateError(StagemeshError):
    """Raised when one API key has used the tokens that it gets in a minute."""

    code = "token_rate_exceeded"
    grpc_status = "RESOURCE_EXHAUSTED"
    http_status = 429
    template = (
        "this API key has used its {tokens_per_minute} tokens a minute; "
        "try again in {wait_seconds} s"
    )
    tokens_per_minute: int
    wait_seconds: int

    @property
    def retry_after_seconds(self) -> int:  # type: ignore[override]  # no constant here
        """Whole seconds until the key may ask again."""
        return self.wait_seconds


@dataclass(eq=False, kw_only=True)
class TooManyLogprobsError(StagemeshError):
    """Raised when running and waiting requests ask for as many log-probabilities as are served."""

    code = "too_many_logprobs"
    grpc_status = "RESOURCE_EXHAUSTED"
    http_status = 429
    retry_after_seconds = 1
    template = (
        "{num_logprobs} log-probabilities for each token, with the {num_others} of other requests, "
        "are more than the {limit} that are served; ask for fewer, or try again later"
    )
    num_logprobs: int
    num_others: int
    limit: int


@dataclass(eq=False, kw_only=True)
class NotReadyError(UnavailableError):
    """Raised when the mesh is not serving yet."""

    code = "not_ready"
    template = "the mesh is not ready ({phase}); try again shortly"
    phase: str


@dataclass(eq=False, kw_only=True)
class DeadlineExceededError(StagemeshError):
    """Raised when a request's deadline passes before it is finished."""

    code = "deadline_exceeded"
    grpc_status = "DEADLINE_EXCEEDED"
    http_status = 504
    template = "the deadline passed before the request was finished; allow more time"


@dataclass(eq=False, kw_only=True)
class RequestCancelledError(StagemeshError):
    """Raised when the client went away or cancelled."""

    code = "request_cancelled"
    grpc_status = "CANCELLED"
    http_status = 499
    template = "the request was cancelled by its client"


@dataclass(eq=False, kw_only=True)
class ShuttingDownError(UnavailableError):
    """Raised when the server takes no more work because it stops."""

    code = "shutting_down"
    template = "the server is shutting down; send the request elsewhere or later"


@dataclass(eq=False, kw_only=True)
class RequestsFailedError(StagemeshError):
    """Raised when requests of a load test failed."""

    code = "requests_failed"
    template = "{num_failed} of {num_requests} requests failed, the first with: {first}"
    num_failed: int
    num_requests: int
    first: str


# ---- steps and frames ----------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class StepGapError(BrokenRuleError):
    """Raised when a step does not follow the one before it."""

    code = "step_gap"
    template = "expected step {expected}, got step {actual}"
    expected: int
    actual: int


@dataclass(eq=False, kw_only=True)
class StaleEpochError(BrokenRuleError):
    """Raised when a message belongs to another epoch."""

    code = "stale_epoch"
    template = "expected epoch {expected}, got epoch {actual}"
    expected: str
    actual: str


@dataclass(eq=False, kw_only=True)
class PositionError(BrokenRuleError):
    """Raised when a chunk does not start where its slot's KV cache ends."""

    code = "position"
    template = "slot {slot}: expected position {expected}, got {actual}"
    slot: int
    expected: int
    actual: int


@dataclass(eq=False, kw_only=True)
class FrameError(BrokenRuleError):
    """Raised when a frame's shape, dtype, size, offset or interval does not fit the plan."""

    code = "frame"
    template = "{what}: expected {expected}, got {actual}"
    what: str
    expected: object
    actual: object


@dataclass(eq=False, kw_only=True)
class WindowExceededError(BrokenRuleError):
    """Raised when a sender has more steps outstanding than it has credits."""

    code = "window_exceeded"
    template = "step {step} exceeds the window of {window} outstanding steps"
    step: int
    window: int


@dataclass(eq=False, kw_only=True)
class SlotError(BrokenRuleError):
    """Raised when a step opens, uses or releases a slot that is not in the right state."""

    code = "slot"
    template = "slot {slot}: {problem}"
    slot: int
    problem: str


@dataclass(eq=False, kw_only=True)
class BlockError(BrokenRuleError):
    """Raised when a step's block ids are out of range, in use or too few."""

    code = "block"
    template = "slot {slot}, KV block {block}: {problem}"
    slot: int
    block: int
    problem: str


@dataclass(eq=False, kw_only=True)
class HeaderMismatchError(BrokenRuleError):
    """Raised when two ranks of a stage were sent different headers, by all of its ranks."""

    code = "header_mismatch"
    template = "the header of rank {rank} is not that of rank 0: expected {expected}, got {actual}"
    rank: int
    expected: str
    actual: str


@dataclass(eq=False, kw_only=True)
class SharedMemoryError(StagemeshError):
    """Raised when a rank cannot map the memory that it shares with the others of its stage."""

    code = "shared_memory"
    grpc_status = "RESOURCE_EXHAUSTED"
    template = (
        "{num_bytes:,} bytes at {path}, which the ranks of a stage share, cannot be had: "
        "{problem}, {available_bytes:,} bytes are free; make room there (in a container: docker's "
        "--shm-size)"
    )
    path: str
    num_bytes: int
    available_bytes: int
    problem: str


@dataclass(eq=False, kw_only=True)
class CollectiveTimeoutError(UnavailableError):
    """Raised when another rank of the stage does not come to a collective in time."""

    code = "collective_timeout"
    template = (
        "rank {rank} waited {seconds:g} s for {missing} in {what}; ranks of a stage must run on "
        "one host and share its /dev/shm"
    )
    rank: int
    missing: str
    what: str
    seconds: float


@dataclass(eq=False, kw_only=True)
class NonFiniteLogitsError(StagemeshError):
    """Raised when the model computes NaN or infinite logits; it ends the epoch."""

    code = "non_finite_logits"
    template = "slot {slot}: the logits are not finite; use --dtype float32, or check the weights"
    slot: int


@dataclass(eq=False, kw_only=True)
class EpochEndedError(UnavailableError):
    """Raised when the epoch that a call belongs to is over; `cause` is the first error's code."""

    code = "epoch_ended"
    template = "the epoch ended ({cause}): {detail}"
    cause: str
    detail: str

    @classmethod
    def by(cls, error: StagemeshError, who: str = "") -> Self:
        """The end that `error` makes, as `who` tells of it; the end of an end keeps its cause."""
        if isinstance(error, EpochEndedError):
            cause, detail = error.cause, error.detail
        else:
            cause, detail = error.code, str(error)
        return cls(cause=cause, detail=f"{who}: {detail}" if who else detail)


@dataclass(eq=False, kw_only=True)
class NextStageError(EpochEndedError):
    """Raised when the stream to the next stage at `address` does not open, or ends."""

    address: str


@dataclass(eq=False, kw_only=True)
class StageFailedError(EpochEndedError):
    """Raised when a stage's own word, or its silence, ends the epoch; `workers` are its ranks."""

    workers: tuple[str, ...]


# ---- workers -------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class WorkerRefusedError(RefusedWorkerError):
    """Raised when a worker refuses its assignment or is refused at hello."""

    code = "worker_refused"
    template = "worker {worker} refused: {reason}"
    worker: str
    reason: str


@dataclass(eq=False, kw_only=True)
class WorkerFailedError(UnavailableError):
    """Raised when a worker fails at what it was asked for; another worker, or try, may not."""

    code = "worker_failed"
    template = "worker {worker} failed: {reason}"
    worker: str
    reason: str


@dataclass(eq=False, kw_only=True)
class ProtocolVersionError(RefusedWorkerError):
    """Raised when worker and coordinator speak different protocol versions."""

    code = "protocol_version"
    template = (
        "protocol version {actual} does not match this mesh's {expected}; "
        "run the same build of stagemesh everywhere"
    )
    expected: int
    actual: int


@dataclass(eq=False, kw_only=True)
class FingerprintMismatchError(RefusedWorkerError):
    """Raised when a worker's checkpoint is not the coordinator's."""

    code = "fingerprint_mismatch"
    template = (
        "weights fingerprint {actual} does not match the coordinator's {expected}; "
        "put the same model files on every node"
    )
    expected: str
    actual: str


@dataclass(eq=False, kw_only=True)
class AssignmentError(RefusedWorkerError):
    """Raised when a call does not fit the part of the model that this worker holds."""

    code = "assignment"
    template = "expected assignment {expected}, got {actual}"
    expected: str
    actual: str


@dataclass(eq=False, kw_only=True)
class ForbiddenPeerError(StagemeshError):
    """Raised when a caller's certificate does not let it call a method of the mesh."""

    code = "forbidden_peer"
    grpc_status = "PERMISSION_DENIED"
    http_status = 403
    template = "{what} is for a {expected}, and the caller's certificate says {actual}"
    what: str
    expected: str
    actual: str


@dataclass(eq=False, kw_only=True)
class WorkerDiedError(UnavailableError):
    """Raised when a worker's process or connection is gone."""

    code = "worker_died"
    template = "worker {worker} is gone: {detail}"
    worker: str
    detail: str


@dataclass(eq=False, kw_only=True)
class LinkBrokenError(UnavailableError):
    """Raised when one worker does not reach another; which of the two is to blame is not known."""

    code = "link_broken"
    template = (
        "worker {worker} does not reach worker {peer}: {detail}; "
        "workers must reach each other at the addresses that they --listen on or --advertise"
    )
    worker: str
    peer: str
    detail: str


@dataclass(eq=False, kw_only=True)
class DeviceStuckError(UnavailableError):
    """Raised when the device does not come back from an epoch that is over; it ends the process."""

    code = "device_stuck"
    template = (
        "the device has not come back {seconds:g} s after the epoch's end, most likely from a "
        "collective whose other ranks are gone; this process ends, to be started again"
    )
    seconds: float


@dataclass(eq=False, kw_only=True)
class LaunchError(StagemeshError):
    """Raised when the processes of a mesh on one machine cannot be started or kept running."""

    code = "launch"
    template = "{problem}"
    problem: str
