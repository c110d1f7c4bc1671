from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    DTYPE_FLOAT32: _ClassVar[DType]
    DTYPE_BFLOAT16: _ClassVar[DType]
    DTYPE_FLOAT16: _ClassVar[DType]

class Overlap(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OVERLAP_UNSPECIFIED: _ClassVar[Overlap]
    OVERLAP_AUTO: _ClassVar[Overlap]
    OVERLAP_ON: _ClassVar[Overlap]
    OVERLAP_OFF: _ClassVar[Overlap]

class CollectiveBackend(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLLECTIVE_BACKEND_UNSPECIFIED: _ClassVar[CollectiveBackend]
    COLLECTIVE_BACKEND_AUTO: _ClassVar[CollectiveBackend]
    COLLECTIVE_BACKEND_SHM: _ClassVar[CollectiveBackend]
    COLLECTIVE_BACKEND_GLOO: _ClassVar[CollectiveBackend]
    COLLECTIVE_BACKEND_NCCL: _ClassVar[CollectiveBackend]

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_EMPTY: _ClassVar[WorkerState]
    WORKER_STATE_LOADING: _ClassVar[WorkerState]
    WORKER_STATE_LOADED: _ClassVar[WorkerState]
    WORKER_STATE_SERVING: _ClassVar[WorkerState]
DTYPE_UNSPECIFIED: DType
DTYPE_FLOAT32: DType
DTYPE_BFLOAT16: DType
DTYPE_FLOAT16: DType
OVERLAP_UNSPECIFIED: Overlap
OVERLAP_AUTO: Overlap
OVERLAP_ON: Overlap
OVERLAP_OFF: Overlap
COLLECTIVE_BACKEND_UNSPECIFIED: CollectiveBackend
COLLECTIVE_BACKEND_AUTO: CollectiveBackend
COLLECTIVE_BACKEND_SHM: CollectiveBackend
COLLECTIVE_BACKEND_GLOO: CollectiveBackend
COLLECTIVE_BACKEND_NCCL: CollectiveBackend
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_EMPTY: WorkerState
WORKER_STATE_LOADING: WorkerState
WORKER_STATE_LOADED: WorkerState
WORKER_STATE_SERVING: WorkerState

class EpochId(_message.Message):
    __slots__ = ("coordinator_id", "counter")
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    coordinator_id: str
    counter: int
    def __init__(self, coordinator_id: _Optional[str] = ..., counter: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("replica", "stage", "num_stages", "rank", "tp_size", "first_layer", "num_layers", "model", "weights_fingerprint", "dtype", "block_size", "max_model_len", "kv_memory_bytes")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_STAGES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TP_SIZE_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    KV_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    replica: int
    stage: int
    num_stages: int
    rank: int
    tp_size: int
    first_layer: int
    num_layers: int
    model: str
    weights_fingerprint: str
    dtype: DType
    block_size: int
    max_model_len: int
    kv_memory_bytes: int
    def __init__(self, replica: _Optional[int] = ..., stage: _Optional[int] = ..., num_stages: _Optional[int] = ..., rank: _Optional[int] = ..., tp_size: _Optional[int] = ..., first_layer: _Optional[int] = ..., num_layers: _Optional[int] = ..., model: _Optional[str] = ..., weights_fingerprint: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., block_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., kv_memory_bytes: _Optional[int] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("assignment",)
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ...) -> None: ...

class LoadProgress(_message.Message):
    __slots__ = ("done_bytes", "total_bytes", "report")
    DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    done_bytes: int
    total_bytes: int
    report: LoadReport
    def __init__(self, done_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., report: _Optional[_Union[LoadReport, _Mapping]] = ...) -> None: ...

class LoadReport(_message.Message):
    __slots__ = ("num_kv_blocks", "weights_bytes", "peak_rss_bytes", "load_seconds", "weights_fingerprint")
    NUM_KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    num_kv_blocks: int
    weights_bytes: int
    peak_rss_bytes: int
    load_seconds: float
    weights_fingerprint: str
    def __init__(self, num_kv_blocks: _Optional[int] = ..., weights_bytes: _Optional[int] = ..., peak_rss_bytes: _Optional[int] = ..., load_seconds: _Optional[float] = ..., weights_fingerprint: _Optional[str] = ...) -> None: ...

class RecordCanaryRequest(_message.Message):
    __slots__ = ("model", "weights_fingerprint", "token_ids", "num_logprobs", "max_model_len")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    model: str
    weights_fingerprint: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_logprobs: int
    max_model_len: int
    def __init__(self, model: _Optional[str] = ..., weights_fingerprint: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_logprobs: _Optional[int] = ..., max_model_len: _Optional[int] = ...) -> None: ...

class RecordCanaryProgress(_message.Message):
    __slots__ = ("done_layers", "num_layers", "top_ids", "top_logprobs")
    DONE_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    done_layers: int
    num_layers: int
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, done_layers: _Optional[int] = ..., num_layers: _Optional[int] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("address", "rank")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    address: str
    rank: int
    def __init__(self, address: _Optional[str] = ..., rank: _Optional[int] = ...) -> None: ...

class OpenEpochRequest(_message.Message):
    __slots__ = ("epoch", "replica", "stage", "rank", "num_kv_blocks", "max_sequences", "max_step_tokens", "window", "next", "num_senders", "backend", "collective_timeout_seconds", "overlap")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    NUM_SENDERS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    epoch: EpochId
    replica: int
    stage: int
    rank: int
    num_kv_blocks: int
    max_sequences: int
    max_step_tokens: int
    window: int
    next: _containers.RepeatedCompositeFieldContainer[Peer]
    num_senders: int
    backend: CollectiveBackend
    collective_timeout_seconds: float
    overlap: Overlap
    def __init__(self, epoch: _Optional[_Union[EpochId, _Mapping]] = ..., replica: _Optional[int] = ..., stage: _Optional[int] = ..., rank: _Optional[int] = ..., num_kv_blocks: _Optional[int] = ..., max_sequences: _Optional[int] = ..., max_step_tokens: _Optional[int] = ..., window: _Optional[int] = ..., next: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., num_senders: _Optional[int] = ..., backend: _Optional[_Union[CollectiveBackend, str]] = ..., collective_timeout_seconds: _Optional[float] = ..., overlap: _Optional[_Union[Overlap, str]] = ...) -> None: ...

class OpenEpochResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Frame(_message.Message):
    __slots__ = ("epoch", "step", "sender_rank", "header", "activation", "offset", "last", "payload")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SENDER_RANK_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    epoch: EpochId
    step: int
    sender_rank: int
    header: StepHeader
    activation: ActivationSpec
    offset: int
    last: bool
    payload: bytes
    def __init__(self, epoch: _Optional[_Union[EpochId, _Mapping]] = ..., step: _Optional[int] = ..., sender_rank: _Optional[int] = ..., header: _Optional[_Union[StepHeader, _Mapping]] = ..., activation: _Optional[_Union[ActivationSpec, _Mapping]] = ..., offset: _Optional[int] = ..., last: _Optional[bool] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ActivationSpec(_message.Message):
    __slots__ = ("dtype", "num_tokens", "hidden_begin", "hidden_end")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_BEGIN_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_END_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    num_tokens: int
    hidden_begin: int
    hidden_end: int
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., num_tokens: _Optional[int] = ..., hidden_begin: _Optional[int] = ..., hidden_end: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class StepHeader(_message.Message):
    __slots__ = ("step", "released_slots", "opened_slots", "chunks")
    STEP_FIELD_NUMBER: _ClassVar[int]
    RELEASED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    OPENED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    step: int
    released_slots: _containers.RepeatedScalarFieldContainer[int]
    opened_slots: _containers.RepeatedCompositeFieldContainer[SlotOpening]
    chunks: _containers.RepeatedCompositeFieldContainer[SequenceChunk]
    def __init__(self, step: _Optional[int] = ..., released_slots: _Optional[_Iterable[int]] = ..., opened_slots: _Optional[_Iterable[_Union[SlotOpening, _Mapping]]] = ..., chunks: _Optional[_Iterable[_Union[SequenceChunk, _Mapping]]] = ...) -> None: ...

class SlotOpening(_message.Message):
    __slots__ = ("slot", "sampling", "cached_token_ids", "cached_block_ids")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    sampling: SlotSampling
    cached_token_ids: _containers.RepeatedScalarFieldContainer[int]
    cached_block_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, slot: _Optional[int] = ..., sampling: _Optional[_Union[SlotSampling, _Mapping]] = ..., cached_token_ids: _Optional[_Iterable[int]] = ..., cached_block_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SlotSampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "choice", "num_logprobs", "suppressed_ids", "suppressed_until", "presence_penalty", "frequency_penalty", "repetition_penalty", "num_prompt_tokens", "logit_bias", "grammar", "num_prompt_logprobs")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_IDS_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    choice: int
    num_logprobs: int
    suppressed_ids: _containers.RepeatedScalarFieldContainer[int]
    suppressed_until: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    num_prompt_tokens: int
    logit_bias: _containers.RepeatedCompositeFieldContainer[SlotLogitBias]
    grammar: str
    num_prompt_logprobs: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., choice: _Optional[int] = ..., num_logprobs: _Optional[int] = ..., suppressed_ids: _Optional[_Iterable[int]] = ..., suppressed_until: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., num_prompt_tokens: _Optional[int] = ..., logit_bias: _Optional[_Iterable[_Union[SlotLogitBias, _Mapping]]] = ..., grammar: _Optional[str] = ..., num_prompt_logprobs: _Optional[int] = ...) -> None: ...

class SlotLogitBias(_message.Message):
    __slots__ = ("token_id", "bias")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    bias: float
    def __init__(self, token_id: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class SequenceChunk(_message.Message):
    __slots__ = ("slot", "position", "token_ids", "new_block_ids", "sample", "next_token_id")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NEW_BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    slot: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    new_block_ids: _containers.RepeatedScalarFieldContainer[int]
    sample: bool
    next_token_id: int
    def __init__(self, slot: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., new_block_ids: _Optional[_Iterable[int]] = ..., sample: _Optional[bool] = ..., next_token_id: _Optional[int] = ...) -> None: ...

class ResultsRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: EpochId
    def __init__(self, epoch: _Optional[_Union[EpochId, _Mapping]] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("step", "sampled", "timing", "failure", "scored", "continues")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    SCORED_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    step: int
    sampled: _containers.RepeatedCompositeFieldContainer[SampledToken]
    timing: StageTiming
    failure: StageFailure
    scored: _containers.RepeatedCompositeFieldContainer[ScoredToken]
    continues: bool
    def __init__(self, step: _Optional[int] = ..., sampled: _Optional[_Iterable[_Union[SampledToken, _Mapping]]] = ..., timing: _Optional[_Union[StageTiming, _Mapping]] = ..., failure: _Optional[_Union[StageFailure, _Mapping]] = ..., scored: _Optional[_Iterable[_Union[ScoredToken, _Mapping]]] = ..., continues: _Optional[bool] = ...) -> None: ...

class ScoredToken(_message.Message):
    __slots__ = ("slot", "position", "token_id", "logprob", "top_ids", "top_logprobs")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    slot: int
    position: int
    token_id: int
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, slot: _Optional[int] = ..., position: _Optional[int] = ..., token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class SampledToken(_message.Message):
    __slots__ = ("slot", "token_id", "logprob", "top_ids", "top_logprobs", "problem")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    slot: int
    token_id: int
    logprob: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    problem: str
    def __init__(self, slot: _Optional[int] = ..., token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ..., problem: _Optional[str] = ...) -> None: ...

class StageTiming(_message.Message):
    __slots__ = ("receive_seconds", "queue_seconds", "compute_seconds", "idle_seconds", "send")
    RECEIVE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    receive_seconds: float
    queue_seconds: float
    compute_seconds: float
    idle_seconds: float
    send: SendTiming
    def __init__(self, receive_seconds: _Optional[float] = ..., queue_seconds: _Optional[float] = ..., compute_seconds: _Optional[float] = ..., idle_seconds: _Optional[float] = ..., send: _Optional[_Union[SendTiming, _Mapping]] = ...) -> None: ...

class SendTiming(_message.Message):
    __slots__ = ("step", "seconds", "hidden_seconds", "num_frames", "num_bytes")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_FRAMES_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    step: int
    seconds: float
    hidden_seconds: float
    num_frames: int
    num_bytes: int
    def __init__(self, step: _Optional[int] = ..., seconds: _Optional[float] = ..., hidden_seconds: _Optional[float] = ..., num_frames: _Optional[int] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class StageFailure(_message.Message):
    __slots__ = ("code", "message", "step")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    step: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("worker_id", "state", "assignment", "epoch", "num_kv_blocks", "num_kv_blocks_used", "num_slots_used", "num_steps", "rss_bytes", "peak_rss_bytes", "weights_bytes")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    state: WorkerState
    assignment: Assignment
    epoch: EpochId
    num_kv_blocks: int
    num_kv_blocks_used: int
    num_slots_used: int
    num_steps: int
    rss_bytes: int
    peak_rss_bytes: int
    weights_bytes: int
    def __init__(self, worker_id: _Optional[str] = ..., state: _Optional[_Union[WorkerState, str]] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., epoch: _Optional[_Union[EpochId, _Mapping]] = ..., num_kv_blocks: _Optional[int] = ..., num_kv_blocks_used: _Optional[int] = ..., num_slots_used: _Optional[int] = ..., num_steps: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., peak_rss_bytes: _Optional[int] = ..., weights_bytes: _Optional[int] = ...) -> None: ...

class UnloadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnloadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
