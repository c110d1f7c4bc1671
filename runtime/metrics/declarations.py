"""The declarations of all Prometheus metrics: one prefix, base units, bounded labels.

It never measures. A process makes its class once, over its own registry, and sets the values.
Longer than other files, because all declarations stand in one place.
"""

from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
)

from runtime.version import PROTOCOL_VERSION, VERSION

NAMESPACE: Final = "stagemesh"

# From 1 ms; common targets (0.2, 0.5, 1 s; 25, 50, 100 ms) are bucket edges.
_FIRST_TOKEN_BUCKETS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 300.0),
)
_PER_TOKEN_BUCKETS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.5, 1.0, 2.5, 10.0),
)
_REQUEST_BUCKETS: Final = (
    *(0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0),
)
_LENGTH_BUCKETS: Final = tuple(float(2**power) for power in range(18))
_HOP_BUCKETS: Final = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0),
)
_LAG_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_STAGE: Final = ("replica", "stage")


class ProcessMetrics:
    """Metrics of every process; `process` is `coordinator` or `worker`."""

    def __init__(self, registry: CollectorRegistry, process: str) -> None:
        self.registry = registry
        # CPU seconds, resident memory and open files, where the system reports them.
        ProcessCollector(namespace=NAMESPACE, registry=registry)
        build = Info("build", "What runs here.", (), NAMESPACE, registry=registry)
        build.info(
            {"process": process, "version": VERSION, "protocol_version": str(PROTOCOL_VERSION)}
        )
        self.grpc_calls = Counter(
            "grpc_calls_total",
            "Calls of gRPC methods that are over, by the status that they ended with.",
            ("method", "code"),
            NAMESPACE,
            registry=registry,
        )
        self.grpc_calls_running = Gauge(
            "grpc_calls_running",
            "Calls of gRPC methods that go on.",
            ("method",),
            NAMESPACE,
            registry=registry,
        )
        self.event_loop_lag = Histogram(
            "event_loop_lag_seconds",
            "How late a timer of the event loop was served.",
            (),
            NAMESPACE,
            registry=registry,
            buckets=_LAG_BUCKETS,
        )


class WorkerMetrics(ProcessMetrics):
    """Metrics of one worker; `state` is `empty`, `loading`, `loaded` or `serving`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "worker")

        def gauge(name: str, documentation: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"worker_{name}", documentation, labels, NAMESPACE, registry=registry)

        def counter(name: str, documentation: str) -> Counter:
            return Counter(f"worker_{name}_total", documentation, (), NAMESPACE, registry=registry)

        self.joined = gauge("joined", "1 while the worker is in a mesh.")
        self.state = gauge("state", "1 for the state that the worker is in.", ("state",))
        self.layers = gauge("layers", "Layers that the worker holds.")
        self.weights = gauge("weights_bytes", "Weights that the worker holds.")
        self.kv_blocks = gauge("kv_blocks", "KV blocks by state, used or free.", ("state",))
        self.slots_used = gauge("slots_used", "Open slots.")
        self.compute_seconds = counter("compute_seconds", "The device computed steps.")
        self.wait_seconds = counter(
            "wait_seconds", "Of the time of computing: it waited for the stage's other ranks."
        )
        self.sent_bytes = counter("sent_bytes", "This rank sent to the next stage.")
        self.device_utilization = gauge(
            "device_utilization_ratio",
            "Part of the time in which the device, or the host of a CPU, was busy.",
        )
        self.device_memory = gauge(
            "device_memory_bytes", "The device's memory by state, used or free.", ("state",)
        )
        self.device_power = gauge("device_power_watts", "What the device draws.")
        self.device_temperature = gauge("device_temperature_celsius", "How hot the device is.")


class CoordinatorMetrics(ProcessMetrics):
    """Metrics of the coordinator: requests, tokens, replicas and the stages' reports.

    `api` is `grpc` or `http`, `reason` is `stop`, `length` or an error's code, as `cause` is;
    `state` of a KV block is `used` or `free`, of a worker `used` or `spare`.
    """

    def __init__(self, registry: CollectorRegistry, tpot_seconds: float | None = None) -> None:
        """The target `tpot_seconds` becomes a bucket edge, so that its attainment is exact."""
        super().__init__(registry, "coordinator")
        self._declare_requests(registry)
        self._declare_latencies(registry, tpot_seconds)
        self._declare_replicas(registry)
        self._declare_stages(registry)
        self._declare_scheduler(registry)

    def _declare_requests(self, registry: CollectorRegistry) -> None:
        self.requests_running = Gauge(
            "requests_running", "Sequences that hold a slot.", (), NAMESPACE, registry=registry
        )
        self.requests_waiting = Gauge(
            "requests_waiting", "Sequences in the queue.", (), NAMESPACE, registry=registry
        )
        self.requests = Counter(
            "requests_total",
            "Prompts that ended.",
            ("api", "reason"),
            NAMESPACE,
            registry=registry,
        )
        self.requests_rejected = Counter(
            "requests_rejected_total",
            "Requests that were not admitted.",
            ("api", "reason"),
            NAMESPACE,
            registry=registry,
        )
        self.http_requests = Counter(
            "http_requests_total",
            "Exchanges of the HTTP API, by the route and the answer's status.",
            ("route", "status"),
            NAMESPACE,
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "prompt_tokens_total", "Prompt tokens admitted.", (), NAMESPACE, registry=registry
        )
        self.generated_tokens = Counter(
            "generated_tokens_total", "Tokens generated.", (), NAMESPACE, registry=registry
        )

    # Longer than other functions: a list of declarations.
    def _declare_latencies(self, registry: CollectorRegistry, tpot_seconds: float | None) -> None:
        targets = () if tpot_seconds is None else (tpot_seconds,)
        per_token_buckets = tuple(sorted({*_PER_TOKEN_BUCKETS, *targets}))

        def histogram(name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, documentation, (), NAMESPACE, registry=registry, buckets=buckets)

        self.time_to_first_token = histogram(
            "time_to_first_token_seconds",
            "From a prompt's arrival to its first token.",
            _FIRST_TOKEN_BUCKETS,
        )
        self.time_per_output_token = histogram(
            "time_per_output_token_seconds",
            "Mean time between the tokens of one prompt after the first.",
            per_token_buckets,
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds",
            "From one token of a prompt to its next.",
            per_token_buckets,
        )
        self.request_seconds = histogram(
            "request_seconds", "From a prompt's arrival to its end.", _REQUEST_BUCKETS
        )
        self.queue_seconds = histogram(
            "queue_seconds", "From a prompt's arrival to its first step.", _FIRST_TOKEN_BUCKETS
        )
        self.prefill_seconds = histogram(
            "prefill_seconds",
            "From a prompt's first step to its first token.",
            _FIRST_TOKEN_BUCKETS,
        )
        self.decode_seconds = histogram(
            "decode_seconds", "From a prompt's first token to its end.", _REQUEST_BUCKETS
        )
        self.prompt_length = histogram(
            "request_prompt_tokens", "Tokens of finished prompts.", _LENGTH_BUCKETS
        )
        self.generation_length = histogram(
            "request_generation_tokens", "Tokens generated for finished prompts.", _LENGTH_BUCKETS
        )

    # Longer than other functions: a list of declarations.
    def _declare_replicas(self, registry: CollectorRegistry) -> None:
        replica = ("replica",)
        self.steps = Counter(
            "steps_total", "Steps whose tokens came back.", replica, NAMESPACE, registry=registry
        )
        # The same microbatches pass all stages.
        self.step_tokens = Histogram(
            "step_tokens",
            "Tokens of one microbatch: prefill, those of prompts' chunks; decode, one a sequence.",
            ("replica", "phase"),
            NAMESPACE,
            registry=registry,
            buckets=_LENGTH_BUCKETS,
        )
        self.step_sequences = Histogram(
            "step_sequences",
            "Sequences of one microbatch, by phase.",
            ("replica", "phase"),
            NAMESPACE,
            registry=registry,
            buckets=_LENGTH_BUCKETS[:12],
        )
        self.preemptions = Counter(
            "preemptions_total",
            "Sequences that lost their KV blocks and were put back in line.",
            replica,
            NAMESPACE,
            registry=registry,
        )
        self.prefix_queried_tokens = Counter(
            "prefix_cache_queried_tokens_total",
            "Tokens of sequences that got a slot, new or again.",
            replica,
            NAMESPACE,
            registry=registry,
        )
        self.prefix_hit_tokens = Counter(
            "prefix_cache_hit_tokens_total",
            "Those of them that the KV cache held already.",
            replica,
            NAMESPACE,
            registry=registry,
        )
        self.steps_in_flight = Gauge(
            "steps_in_flight", "Steps on their way.", replica, NAMESPACE, registry=registry
        )
        self.epochs = Counter(
            "epochs_total", "Epochs that were opened.", replica, NAMESPACE, registry=registry
        )
        self.epoch_ends = Counter(
            "epoch_ends_total",
            "Epochs that ended, by the failure that ended them.",
            ("replica", "cause"),
            NAMESPACE,
            registry=registry,
        )
        self.recovery_seconds = Histogram(
            "recovery_seconds",
            "From the end of serving until requests are served again, by what ended it.",
            ("replica", "cause"),
            NAMESPACE,
            registry=registry,
            buckets=_REQUEST_BUCKETS,
        )
        self.replica_requests = Counter(
            "replica_requests_total",
            "Prompts that ended, by the replica that had them last.",
            replica,
            NAMESPACE,
            registry=registry,
        )
        self.handovers = Counter(
            "handovers_total",
            "Prompts that another replica went on with.",
            replica,
            NAMESPACE,
            registry=registry,
        )
        self.replica_serving = Gauge(
            "replica_serving", "1 while requests are served.", replica, NAMESPACE, registry=registry
        )
        self.workers = Gauge(
            "workers", "Workers in the mesh, by state.", ("state",), NAMESPACE, registry=registry
        )
        self.kv_blocks = Gauge(
            "kv_blocks",
            "KV blocks by state.",
            ("replica", "state"),
            NAMESPACE,
            registry=registry,
        )
        self.kv_utilization = Gauge(
            "kv_cache_utilization_ratio",
            "Part of the KV blocks that is used.",
            replica,
            NAMESPACE,
            registry=registry,
        )

        self.cache_config = Info(
            "cache_config", "The KV cache of a replica.", replica, NAMESPACE, registry=registry
        )
        self.free_credits = Gauge(
            "free_credits",
            "Steps that stage 0 would take now; with none free, the coordinator waits.",
            replica,
            NAMESPACE,
            registry=registry,
        )

    def _declare_stages(self, registry: CollectorRegistry) -> None:
        def counter(name: str, documentation: str) -> Counter:
            return Counter(
                f"stage_{name}_total", documentation, _STAGE, NAMESPACE, registry=registry
            )

        self.stage_compute_seconds = counter("compute_seconds", "The device computed steps.")
        self.stage_idle_seconds = counter("idle_seconds", "The device waited for a step.")
        self.stage_receive_seconds = counter("receive_seconds", "First to last frame of steps.")
        self.stage_queue_seconds = counter("queue_seconds", "Steps waited for the device.")
        self.stage_send_seconds = counter("send_seconds", "Output ready to last frame written.")
        self.stage_send_hidden_seconds = counter(
            "send_hidden_seconds", "Part of the sending during which the device computed."
        )
        self.stage_up = Gauge(
            "stage_up", "1 while the stage serves.", _STAGE, NAMESPACE, registry=registry
        )
        self.stage_layers = Gauge(
            "stage_layers", "Layers of the stage.", _STAGE, NAMESPACE, registry=registry
        )
        self.hop_seconds = Histogram(
            "hop_seconds",
            "A step's output ready to its last frame written; `link` is as 0-1.",
            ("replica", "link"),
            NAMESPACE,
            registry=registry,
            buckets=_HOP_BUCKETS,
        )
        self.hop_bytes = Counter(
            "hop_bytes_total",
            "Bytes that rank 0 sent over the link.",
            ("replica", "link"),
            NAMESPACE,
            registry=registry,
        )
        self.stage_sent_frames = counter("sent_frames", "Frames that rank 0 sent onwards.")

    # Longer than other functions: a list of declarations.
    def _declare_scheduler(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, documentation: str, labels: tuple[str, ...] = ("replica",)) -> Gauge:
            return Gauge(f"scheduler_{name}", documentation, labels, NAMESPACE, registry=registry)

        self.scheduler_steps_in_flight_target = gauge(
            "steps_in_flight_target", "Microbatches that the policy lets be in flight."
        )
        self.scheduler_target_seconds = gauge(
            "target_seconds", "What a microbatch may take on the slowest stage."
        )
        self.scheduler_target_tokens = gauge(
            "target_tokens", "Tokens that a microbatch is to carry."
        )
        self.scheduler_planned_seconds = gauge(
            "planned_seconds", "A step's predicted time on the slowest stage, recent mean."
        )
        self.scheduler_actual_seconds = gauge(
            "actual_seconds", "A step's measured time on the slowest stage, recent mean."
        )
        self.scheduler_overhead_seconds = gauge(
            "overhead_seconds", "A step's round trip besides queues and compute, recent mean."
        )
        self.scheduler_prediction_error = gauge(
            "prediction_error_ratio", "Recent relative error of predictions on the worst stage."
        )
        self.scheduler_warmup = gauge("warmup", "1 while predictions are not trusted yet.")
        self.scheduler_fallback = gauge(
            "fallback", "1 while predictions are too far off, and throttle decides."
        )
        self.scheduler_limit_ratio = gauge(
            "limit_ratio",
            "Measured over possible: throughput, occupancy, tpot, ttft.",
            ("replica", "limit"),
        )
        self.scheduler_stage_error = gauge(
            "stage_error_ratio", "Recent relative error of a stage's predictions.", _STAGE
        )
        self.scheduler_stage_resets = gauge(
            "stage_resets", "How often a stage's times jumped in this epoch.", _STAGE
        )
        self.scheduler_stage_cost = gauge(
            "stage_cost_seconds",
            "Coefficients of a stage's cost model, in seconds per unit of each.",
            (*_STAGE, "coefficient"),
        )
        self.scheduler_bubble_seconds = Counter(
            "scheduler_bubble_seconds_total",
            "Stages stood idle: starved, fill, imbalance, exposed_send, coordinator.",
            ("replica", "cause"),
            NAMESPACE,
            registry=registry,
        )
        self.scheduler_decisions = Counter(
            "scheduler_decisions_total",
            "The policy decided: cycles, more_in_flight, fewer_in_flight, fallbacks.",
            ("replica", "decision"),
            NAMESPACE,
            registry=registry,
        )
