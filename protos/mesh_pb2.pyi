from protos import stage_pb2 as _stage_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerMessage(_message.Message):
    __slots__ = ("hello", "heartbeat", "leaving")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    leaving: Leaving
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ("grace_seconds",)
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    grace_seconds: float
    def __init__(self, grace_seconds: _Optional[float] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "build", "worker_id", "node", "address", "device", "pid", "metrics_address", "held")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    BUILD_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    build: str
    worker_id: str
    node: str
    address: str
    device: Device
    pid: int
    metrics_address: str
    held: _stage_pb2.Assignment
    def __init__(self, protocol_version: _Optional[int] = ..., build: _Optional[str] = ..., worker_id: _Optional[str] = ..., node: _Optional[str] = ..., address: _Optional[str] = ..., device: _Optional[_Union[Device, _Mapping]] = ..., pid: _Optional[int] = ..., metrics_address: _Optional[str] = ..., held: _Optional[_Union[_stage_pb2.Assignment, _Mapping]] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("kind", "name", "memory_bytes", "dtypes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    memory_bytes: int
    dtypes: _containers.RepeatedScalarFieldContainer[_stage_pb2.DType]
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., dtypes: _Optional[_Iterable[_Union[_stage_pb2.DType, str]]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("usage", "activity")
    USAGE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    usage: DeviceUsage
    activity: RankActivity
    def __init__(self, usage: _Optional[_Union[DeviceUsage, _Mapping]] = ..., activity: _Optional[_Union[RankActivity, _Mapping]] = ...) -> None: ...

class RankActivity(_message.Message):
    __slots__ = ("epoch", "num_steps", "compute_seconds", "wait_seconds", "num_bytes_sent")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    epoch: _stage_pb2.EpochId
    num_steps: int
    compute_seconds: float
    wait_seconds: float
    num_bytes_sent: int
    def __init__(self, epoch: _Optional[_Union[_stage_pb2.EpochId, _Mapping]] = ..., num_steps: _Optional[int] = ..., compute_seconds: _Optional[float] = ..., wait_seconds: _Optional[float] = ..., num_bytes_sent: _Optional[int] = ...) -> None: ...

class DeviceUsage(_message.Message):
    __slots__ = ("utilization", "memory_used_bytes", "memory_total_bytes", "power_watts", "temperature_celsius")
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    POWER_WATTS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_CELSIUS_FIELD_NUMBER: _ClassVar[int]
    utilization: float
    memory_used_bytes: int
    memory_total_bytes: int
    power_watts: float
    temperature_celsius: float
    def __init__(self, utilization: _Optional[float] = ..., memory_used_bytes: _Optional[int] = ..., memory_total_bytes: _Optional[int] = ..., power_watts: _Optional[float] = ..., temperature_celsius: _Optional[float] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("welcome", "refusal", "heartbeat", "released")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    refusal: Refusal
    heartbeat: Heartbeat
    released: Released
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., released: _Optional[_Union[Released, _Mapping]] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("coordinator_id", "heartbeat_seconds")
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    coordinator_id: str
    heartbeat_seconds: float
    def __init__(self, coordinator_id: _Optional[str] = ..., heartbeat_seconds: _Optional[float] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class GetStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("target", "grace_seconds")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    target: str
    grace_seconds: float
    def __init__(self, target: _Optional[str] = ..., grace_seconds: _Optional[float] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, workers: _Optional[_Iterable[str]] = ...) -> None: ...

class GetStateResponse(_message.Message):
    __slots__ = ("build", "coordinator_id", "model", "ready", "phase", "num_running", "num_waiting", "replicas", "workers", "failure", "uptime_seconds", "max_model_len", "mesh_address", "recoveries")
    BUILD_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MESH_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RECOVERIES_FIELD_NUMBER: _ClassVar[int]
    build: str
    coordinator_id: str
    model: str
    ready: bool
    phase: str
    num_running: int
    num_waiting: int
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaState]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    failure: str
    uptime_seconds: float
    max_model_len: int
    mesh_address: str
    recoveries: _containers.RepeatedCompositeFieldContainer[Recovery]
    def __init__(self, build: _Optional[str] = ..., coordinator_id: _Optional[str] = ..., model: _Optional[str] = ..., ready: _Optional[bool] = ..., phase: _Optional[str] = ..., num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ReplicaState, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., failure: _Optional[str] = ..., uptime_seconds: _Optional[float] = ..., max_model_len: _Optional[int] = ..., mesh_address: _Optional[str] = ..., recoveries: _Optional[_Iterable[_Union[Recovery, _Mapping]]] = ...) -> None: ...

class Recovery(_message.Message):
    __slots__ = ("replica", "epoch", "cause", "detail", "ended_unix_seconds", "seconds")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ENDED_UNIX_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    replica: int
    epoch: int
    cause: str
    detail: str
    ended_unix_seconds: float
    seconds: float
    def __init__(self, replica: _Optional[int] = ..., epoch: _Optional[int] = ..., cause: _Optional[str] = ..., detail: _Optional[str] = ..., ended_unix_seconds: _Optional[float] = ..., seconds: _Optional[float] = ...) -> None: ...

class ReplicaState(_message.Message):
    __slots__ = ("replica", "epoch", "num_kv_blocks", "num_kv_blocks_used", "block_size", "num_slots_used", "max_sequences", "num_steps_in_flight", "num_steps", "stages", "num_prompt_tokens", "num_generated_tokens", "phase", "serving", "num_waiting", "scheduler")
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    replica: int
    epoch: _stage_pb2.EpochId
    num_kv_blocks: int
    num_kv_blocks_used: int
    block_size: int
    num_slots_used: int
    max_sequences: int
    num_steps_in_flight: int
    num_steps: int
    stages: _containers.RepeatedCompositeFieldContainer[StageState]
    num_prompt_tokens: int
    num_generated_tokens: int
    phase: str
    serving: bool
    num_waiting: int
    scheduler: SchedulerState
    def __init__(self, replica: _Optional[int] = ..., epoch: _Optional[_Union[_stage_pb2.EpochId, _Mapping]] = ..., num_kv_blocks: _Optional[int] = ..., num_kv_blocks_used: _Optional[int] = ..., block_size: _Optional[int] = ..., num_slots_used: _Optional[int] = ..., max_sequences: _Optional[int] = ..., num_steps_in_flight: _Optional[int] = ..., num_steps: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[StageState, _Mapping]]] = ..., num_prompt_tokens: _Optional[int] = ..., num_generated_tokens: _Optional[int] = ..., phase: _Optional[str] = ..., serving: _Optional[bool] = ..., num_waiting: _Optional[int] = ..., scheduler: _Optional[_Union[SchedulerState, _Mapping]] = ...) -> None: ...

class SchedulerState(_message.Message):
    __slots__ = ("policy", "steps_in_flight_target", "target_seconds", "target_tokens", "planned_seconds", "actual_seconds", "overhead_seconds", "error", "warmup", "fallback", "stages", "bubbles", "decisions", "ratios")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    STEPS_IN_FLIGHT_TARGET_FIELD_NUMBER: _ClassVar[int]
    TARGET_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    WARMUP_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    BUBBLES_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    RATIOS_FIELD_NUMBER: _ClassVar[int]
    policy: str
    steps_in_flight_target: int
    target_seconds: float
    target_tokens: int
    planned_seconds: float
    actual_seconds: float
    overhead_seconds: float
    error: float
    warmup: bool
    fallback: bool
    stages: _containers.RepeatedCompositeFieldContainer[StageCostState]
    bubbles: BubbleState
    decisions: DecisionState
    ratios: LimitRatios
    def __init__(self, policy: _Optional[str] = ..., steps_in_flight_target: _Optional[int] = ..., target_seconds: _Optional[float] = ..., target_tokens: _Optional[int] = ..., planned_seconds: _Optional[float] = ..., actual_seconds: _Optional[float] = ..., overhead_seconds: _Optional[float] = ..., error: _Optional[float] = ..., warmup: _Optional[bool] = ..., fallback: _Optional[bool] = ..., stages: _Optional[_Iterable[_Union[StageCostState, _Mapping]]] = ..., bubbles: _Optional[_Union[BubbleState, _Mapping]] = ..., decisions: _Optional[_Union[DecisionState, _Mapping]] = ..., ratios: _Optional[_Union[LimitRatios, _Mapping]] = ...) -> None: ...

class StageCostState(_message.Message):
    __slots__ = ("fixed", "prompt", "per_token", "beyond_128", "beyond_512", "per_attention", "per_context", "per_sample", "error", "safety", "num_records", "num_resets")
    FIXED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BEYOND_128_FIELD_NUMBER: _ClassVar[int]
    BEYOND_512_FIELD_NUMBER: _ClassVar[int]
    PER_ATTENTION_FIELD_NUMBER: _ClassVar[int]
    PER_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PER_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SAFETY_FIELD_NUMBER: _ClassVar[int]
    NUM_RECORDS_FIELD_NUMBER: _ClassVar[int]
    NUM_RESETS_FIELD_NUMBER: _ClassVar[int]
    fixed: float
    prompt: float
    per_token: float
    beyond_128: float
    beyond_512: float
    per_attention: float
    per_context: float
    per_sample: float
    error: float
    safety: float
    num_records: int
    num_resets: int
    def __init__(self, fixed: _Optional[float] = ..., prompt: _Optional[float] = ..., per_token: _Optional[float] = ..., beyond_128: _Optional[float] = ..., beyond_512: _Optional[float] = ..., per_attention: _Optional[float] = ..., per_context: _Optional[float] = ..., per_sample: _Optional[float] = ..., error: _Optional[float] = ..., safety: _Optional[float] = ..., num_records: _Optional[int] = ..., num_resets: _Optional[int] = ...) -> None: ...

class BubbleState(_message.Message):
    __slots__ = ("starved", "fill", "imbalance", "exposed_send", "coordinator")
    STARVED_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    IMBALANCE_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_SEND_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    starved: float
    fill: float
    imbalance: float
    exposed_send: float
    coordinator: float
    def __init__(self, starved: _Optional[float] = ..., fill: _Optional[float] = ..., imbalance: _Optional[float] = ..., exposed_send: _Optional[float] = ..., coordinator: _Optional[float] = ...) -> None: ...

class DecisionState(_message.Message):
    __slots__ = ("cycles", "more_in_flight", "fewer_in_flight", "fallbacks")
    CYCLES_FIELD_NUMBER: _ClassVar[int]
    MORE_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    FEWER_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    cycles: int
    more_in_flight: int
    fewer_in_flight: int
    fallbacks: int
    def __init__(self, cycles: _Optional[int] = ..., more_in_flight: _Optional[int] = ..., fewer_in_flight: _Optional[int] = ..., fallbacks: _Optional[int] = ...) -> None: ...

class LimitRatios(_message.Message):
    __slots__ = ("throughput", "occupancy", "tpot", "ttft")
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    OCCUPANCY_FIELD_NUMBER: _ClassVar[int]
    TPOT_FIELD_NUMBER: _ClassVar[int]
    TTFT_FIELD_NUMBER: _ClassVar[int]
    throughput: float
    occupancy: float
    tpot: float
    ttft: float
    def __init__(self, throughput: _Optional[float] = ..., occupancy: _Optional[float] = ..., tpot: _Optional[float] = ..., ttft: _Optional[float] = ...) -> None: ...

class StageState(_message.Message):
    __slots__ = ("stage", "first_layer", "num_layers", "worker_ids", "compute_seconds", "idle_seconds", "receive_seconds", "queue_seconds", "send_seconds", "send_hidden_seconds", "num_frames_sent", "num_bytes_sent", "num_steps", "weights_bytes", "peak_rss_bytes", "load_done_bytes", "load_total_bytes", "ranks")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEND_HIDDEN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NUM_FRAMES_SENT_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOAD_DONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOAD_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    stage: int
    first_layer: int
    num_layers: int
    worker_ids: _containers.RepeatedScalarFieldContainer[str]
    compute_seconds: float
    idle_seconds: float
    receive_seconds: float
    queue_seconds: float
    send_seconds: float
    send_hidden_seconds: float
    num_frames_sent: int
    num_bytes_sent: int
    num_steps: int
    weights_bytes: int
    peak_rss_bytes: int
    load_done_bytes: int
    load_total_bytes: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankState]
    def __init__(self, stage: _Optional[int] = ..., first_layer: _Optional[int] = ..., num_layers: _Optional[int] = ..., worker_ids: _Optional[_Iterable[str]] = ..., compute_seconds: _Optional[float] = ..., idle_seconds: _Optional[float] = ..., receive_seconds: _Optional[float] = ..., queue_seconds: _Optional[float] = ..., send_seconds: _Optional[float] = ..., send_hidden_seconds: _Optional[float] = ..., num_frames_sent: _Optional[int] = ..., num_bytes_sent: _Optional[int] = ..., num_steps: _Optional[int] = ..., weights_bytes: _Optional[int] = ..., peak_rss_bytes: _Optional[int] = ..., load_done_bytes: _Optional[int] = ..., load_total_bytes: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankState, _Mapping]]] = ...) -> None: ...

class RankState(_message.Message):
    __slots__ = ("rank", "worker_id", "weights_bytes", "peak_rss_bytes", "activity")
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    rank: int
    worker_id: str
    weights_bytes: int
    peak_rss_bytes: int
    activity: RankActivity
    def __init__(self, rank: _Optional[int] = ..., worker_id: _Optional[str] = ..., weights_bytes: _Optional[int] = ..., peak_rss_bytes: _Optional[int] = ..., activity: _Optional[_Union[RankActivity, _Mapping]] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("hello", "state", "usage")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    state: _stage_pb2.WorkerState
    usage: DeviceUsage
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., state: _Optional[_Union[_stage_pb2.WorkerState, str]] = ..., usage: _Optional[_Union[DeviceUsage, _Mapping]] = ...) -> None: ...
