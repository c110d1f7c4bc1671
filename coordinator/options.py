"""Owns what a coordinator process is told at its start; reads no environment, checks no model."""

from dataclasses import dataclass
from pathlib import Path

from runtime.rpc.tls import ApiTls, MeshTls
from scheduler import PolicyName, PolicyOptions
from scheduler.policies import AdaptiveOptions, MultiplicativeOptions

AUTO_DTYPE = "auto"
"""The checkpoint's dtype if all workers compute it at full speed, otherwise float32."""


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """Everything `run_coordinator` needs; counts, bytes and seconds as their names say.

    `kv_memory_bytes` 0 lets each worker choose, `layers` None balances the split, `max_model_len`
    None takes what the model and the KV cache hold.
    """

    model: str
    grpc: str = "127.0.0.1:50050"
    http: str = "127.0.0.1:8000"
    mesh: str = "127.0.0.1:50051"
    pp: int = 1
    dp: int = 1
    layers: tuple[int, ...] | None = None
    # Ranks of each stage; one number stands for all stages.
    tp: tuple[int, ...] = (1,)
    # How the ranks of a stage exchange what they compute: `auto`, `shm`, `gloo` or `nccl`.
    backend: str = "auto"
    # The longest wait of a rank for the others in one exchange.
    collective_timeout_seconds: float = 30.0
    # What a stage does at the same time. `off`: it receives, computes and sends in turns; `on`: its
    # ranks compute every step in two slices, too, and `auto` where that pays.
    overlap: str = "auto"
    dtype: str = AUTO_DTYPE
    block_size: int = 16
    max_model_len: int | None = None
    kv_memory_bytes: int = 0
    max_sequences: int = 64
    max_step_tokens: int = 512
    policy: PolicyName = "adaptive"
    # What `adaptive` keeps the mean time between a request's tokens under; None: no target.
    tpot_seconds: float | None = None
    # None: one step per stage, so that each stage has one to compute; more would only cut decode
    # batches smaller, and a decode step costs nearly the same whatever its batch. `adaptive`
    # chooses for itself, and may have up to two per stage where links are slow.
    num_steps_in_flight: int | None = None
    max_waiting: int = 1024
    # Sequences share the KV blocks of equal beginnings.
    prefix_cache: bool = True
    max_workers: int = 1024
    heartbeat_seconds: float = 1.0
    heartbeat_timeout_seconds: float = 7.0
    # The longest silence of a worker that loads or records a canary.
    load_progress_seconds: float = 120.0
    # The longest wait for a unary answer of a worker.
    call_seconds: float = 30.0
    # The longest wait for the next result while steps are in flight.
    step_seconds: float = 120.0
    # How long requests may lie with no step on its way before the epoch is ended for it.
    stall_seconds: float = 10.0
    # How long running requests may go on after a stop was asked for.
    grace_seconds: float = 10.0
    # How long a replica that has served waits for missing workers before it makes do with fewer.
    replan_seconds: float = 20.0
    # How long after its start a coordinator does not give up: workers that waited for it ask for it
    # every five seconds at worst. 0 where whoever starts it starts all of its workers.
    settle_seconds: float = 8.0
    # Pause before a replica is formed again, doubled with each failure in a row.
    backoff_seconds: float = 0.2
    max_backoff_seconds: float = 5.0
    # The largest request, a body or a message. Decoding one takes the event loop up to some 20 ms
    # for each MiB of what is mostly structure.
    max_request_bytes: int = 4 * 2**20
    # Origins whose web pages may call the HTTP API from a browser; `*` is all.
    cors_origins: tuple[str, ...] = ()
    # The file of API keys; None: the APIs ask for none.
    api_keys: Path | None = None
    # APIs that other machines reach may do without keys.
    allow_anonymous: bool = False
    # Metrics and the mesh's state ask for a key, too.
    protect_state: bool = False
    # The limits of keys for which the file says none; None is no limit.
    key_max_in_flight: int | None = None
    key_tokens_per_minute: int | None = None
    # The mesh's certificate of this process; None: links without TLS, on loopback only unless
    # `is_mesh_insecure`.
    mesh_tls: MeshTls | None = None
    is_mesh_insecure: bool = False
    # The certificate of both APIs; None: APIs without TLS.
    api_tls: ApiTls | None = None
    exit_with_parent: bool = False

    @property
    def tp_sizes(self) -> tuple[int, ...]:
        """How many ranks each stage has."""
        return self.tp * self.pp if len(self.tp) == 1 else self.tp

    @property
    def num_workers(self) -> int:
        """Workers of all replicas."""
        return self.dp * sum(self.tp_sizes)

    @property
    def steps_in_flight(self) -> int:
        """Microbatches that travel through a replica at once, at most."""
        if self.num_steps_in_flight is not None:
            return self.num_steps_in_flight
        return 2 * self.pp if self.policy == "adaptive" else self.pp

    @property
    def window(self) -> int:
        """Steps that a stage may hold undigested; without overlap, the one that it is at.

        Otherwise at least two, one computing and one received behind it, and so many that how many
        are under way is the policy's choice alone.
        """
        return max(2, self.steps_in_flight) if self.overlap != "off" else 1

    @property
    def policy_options(self) -> PolicyOptions:
        """What the policy is told, whichever it is."""
        return PolicyOptions(
            max_step_tokens=self.max_step_tokens,
            multiplicative=MultiplicativeOptions(max_size=self.max_step_tokens),
            adaptive=AdaptiveOptions(tpot_seconds=self.tpot_seconds),
        )
