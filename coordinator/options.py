"""Declares the options of a coordinator process; reads no environment, and checks no model."""

from dataclasses import dataclass
from pathlib import Path

from runtime.rpc.tls import ApiTls, MeshTls
from scheduler import PolicyName, PolicyOptions
from scheduler.policies import AdaptiveOptions, MultiplicativeOptions

AUTO_DTYPE = "auto"
"""The checkpoint's dtype if all workers support it at full speed, otherwise float32."""


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """The options of `run_coordinator`.

    With `kv_memory_bytes` 0 each worker chooses its cache size, with `layers` None the partition
    is balanced by cost, and with `max_model_len` None the model and the KV cache limit it.
    """

    model: str

    # Addresses.
    grpc: str = "127.0.0.1:50050"
    http: str = "127.0.0.1:8000"
    mesh: str = "127.0.0.1:50051"

    # Partition of the model.
    pp: int = 1
    dp: int = 1
    layers: tuple[int, ...] | None = None
    # Ranks of each stage, or one number for all stages.
    tp: tuple[int, ...] = (1,)
    # The collective backend of a stage: `auto`, `shm`, `gloo` or `nccl`.
    backend: str = "auto"
    # The longest wait of a rank in one collective.
    collective_timeout_seconds: float = 30.0
    # Overlap of communication and computation. `off`: a stage receives, computes and sends in
    # sequence; `on`: ranks also compute each step in two slices; `auto`: only where that is faster.
    overlap: str = "auto"
    dtype: str = AUTO_DTYPE

    # Scheduling and limits of requests.
    block_size: int = 16
    max_model_len: int | None = None
    kv_memory_bytes: int = 0
    max_sequences: int = 64
    max_step_tokens: int = 512
    policy: PolicyName = "adaptive"
    # The TPOT target of the policy `adaptive`; None: no target.
    tpot_seconds: float | None = None
    # None: one step per stage keeps every stage busy. More steps would make decode batches smaller,
    # although a decode step costs nearly the same for any batch size. `adaptive` chooses its number
    # of steps, up to two per stage on slow links.
    num_steps_in_flight: int | None = None
    max_waiting: int = 1024
    # Sequences share the KV blocks of equal prefixes.
    prefix_cache: bool = True

    # Failure detection and recovery.
    max_workers: int = 1024
    heartbeat_seconds: float = 1.0
    heartbeat_timeout_seconds: float = 7.0
    # The longest time without progress of a worker that loads weights or records a canary.
    load_progress_seconds: float = 120.0
    # The deadline of a unary call to a worker.
    call_seconds: float = 30.0
    # The longest wait for the next result while steps are in flight.
    step_seconds: float = 120.0
    # The longest time with running requests but no step in flight; then the epoch ends.
    stall_seconds: float = 10.0
    # The time that running requests have to finish after a stop signal.
    grace_seconds: float = 10.0
    # How long a replica that has served waits for missing workers before it plans fewer stages.
    replan_seconds: float = 20.0
    # The time after the start in which a coordinator does not give up: waiting workers retry at
    # least every five seconds. 0 if the parent process also starts all workers.
    settle_seconds: float = 8.0
    # The delay before a replica is formed again; doubled with each consecutive failure.
    backoff_seconds: float = 0.2
    max_backoff_seconds: float = 5.0

    # Limits of the APIs, access and TLS.
    # The largest request body or message. Decoding blocks the event loop for up to about 20 ms per
    # MiB of deeply structured data.
    max_request_bytes: int = 4 * 2**20
    # Origins whose web pages may call the HTTP API; `*` allows all.
    cors_origins: tuple[str, ...] = ()
    # The file of API keys; None: no key is required.
    api_keys: Path | None = None
    # APIs beyond loopback are allowed without keys.
    allow_anonymous: bool = False
    # Metrics and the mesh's state also require a key.
    protect_state: bool = False
    # The limits of keys without limits in the file; None is no limit.
    key_max_in_flight: int | None = None
    key_tokens_per_minute: int | None = None
    # This process's certificate in the mesh; None: no TLS, and only loopback unless
    # `is_mesh_insecure`.
    mesh_tls: MeshTls | None = None
    is_mesh_insecure: bool = False
    # The certificate of both APIs; None: no TLS.
    api_tls: ApiTls | None = None
    exit_with_parent: bool = False

    @property
    def tp_sizes(self) -> tuple[int, ...]:
        """The number of ranks of each stage."""
        return self.tp * self.pp if len(self.tp) == 1 else self.tp

    @property
    def num_workers(self) -> int:
        """The number of workers of all replicas."""
        return self.dp * sum(self.tp_sizes)

    @property
    def steps_in_flight(self) -> int:
        """The most microbatches in flight in a replica."""
        if self.num_steps_in_flight is not None:
            return self.num_steps_in_flight
        return 2 * self.pp if self.policy == "adaptive" else self.pp

    @property
    def window(self) -> int:
        """The flow-control window of a stage: most steps received but not completed.

        1 without overlap. Otherwise at least 2, one in computation and one received, and large
        enough that only the policy limits the steps in flight.
        """
        return max(2, self.steps_in_flight) if self.overlap != "off" else 1

    @property
    def policy_options(self) -> PolicyOptions:
        """The options of the batching policy."""
        return PolicyOptions(
            max_step_tokens=self.max_step_tokens,
            multiplicative=MultiplicativeOptions(max_size=self.max_step_tokens),
            adaptive=AdaptiveOptions(tpot_seconds=self.tpot_seconds),
        )
