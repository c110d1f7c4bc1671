"""The declarations of all Prometheus metrics: one prefix, base units, bounded labels.

Nothing is measured here: a process makes its class once, over its own registry, and sets the
values. Longer than other files, because all declarations are in one place.
"""

from collections.abc import Sequence
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
_LINK: Final = ("replica", "link")


class _Registrar:
    """Makes metrics of one registry; `labels` are the names of their labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        """Declares a gauge."""
        return Gauge(name, documentation, labels, NAMESPACE, registry=self._registry)

    def counter(self, name: str, documentation: str, *labels: str) -> Counter:
        """Declares a counter, which is exposed as `NAME_total`."""
        return Counter(f"{name}_total", documentation, labels, NAMESPACE, registry=self._registry)

    def histogram(
        self, name: str, documentation: str, buckets: Sequence[float], *labels: str
    ) -> Histogram:
        """Declares a histogram with the upper bounds `buckets`."""
        return Histogram(
            name, documentation, labels, NAMESPACE, registry=self._registry, buckets=buckets
        )

    def info(self, name: str, documentation: str, *labels: str) -> Info:
        """Declares an info metric, which is exposed as `NAME_info`."""
        return Info(name, documentation, labels, NAMESPACE, registry=self._registry)


class ProcessMetrics:
    """Metrics of every process; `process` is `coordinator` or `worker`."""

    def __init__(self, registry: CollectorRegistry, process: str) -> None:
        self.registry = registry
        # CPU seconds, resident memory and open files, where the system reports them.
        ProcessCollector(namespace=NAMESPACE, registry=registry)
        new = _Registrar(registry)
        build = {"process": process, "version": VERSION, "protocol_version": str(PROTOCOL_VERSION)}
        new.info("build", "The running build.").info(build)
        self.grpc_calls = new.counter(
            "grpc_calls", "Ended calls of gRPC methods, by status.", "method", "code"
        )
        self.grpc_calls_running = new.gauge(
            "grpc_calls_running", "Running calls of gRPC methods.", "method"
        )
        self.event_loop_lag = new.histogram(
            "event_loop_lag_seconds", "Delay of a timer of the event loop.", _LAG_BUCKETS
        )


class WorkerMetrics(ProcessMetrics):
    """Metrics of one worker; `state` is `empty`, `loading`, `loaded` or `serving`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry, "worker")
        new = _Registrar(registry)
        self.joined = new.gauge("worker_joined", "1 while the worker is in a mesh.")
        self.state = new.gauge("worker_state", "1 for the worker's current state.", "state")
        self.layers = new.gauge("worker_layers", "Loaded layers.")
        self.weights = new.gauge("worker_weights_bytes", "Loaded weights.")
        self.kv_blocks = new.gauge("worker_kv_blocks", "KV blocks, used or free.", "state")
        self.slots_used = new.gauge("worker_slots_used", "Open slots.")
        self.compute_seconds = new.counter(
            "worker_compute_seconds", "Time in which the device computed steps."
        )
        self.wait_seconds = new.counter(
            "worker_wait_seconds", "Part of the compute time spent waiting for the stage's ranks."
        )
        self.sent_bytes = new.counter("worker_sent_bytes", "Bytes sent to the next stage.")
        self.device_utilization = new.gauge(
            "worker_device_utilization_ratio",
            "Share of the time in which the device, or the host for CPUs, was busy.",
        )
        self.device_memory = new.gauge(
            "worker_device_memory_bytes", "Memory of the device, used or free.", "state"
        )
        self.device_power = new.gauge("worker_device_power_watts", "Power of the device.")
        self.device_temperature = new.gauge(
            "worker_device_temperature_celsius", "Temperature of the device."
        )


class CoordinatorMetrics(ProcessMetrics):
    """Metrics of the coordinator: requests, tokens, replicas and the stages' reports.

    `api` is `grpc` or `http`, `reason` is `stop`, `length` or an error's code, as `cause` is;
    `state` of a KV block is `used` or `free`, of a worker `used` or `spare`.
    """

    def __init__(self, registry: CollectorRegistry, tpot_seconds: float | None = None) -> None:
        """The target `tpot_seconds` becomes a bucket edge, so that its attainment is exact."""
        super().__init__(registry, "coordinator")
        new = _Registrar(registry)
        self._declare_requests(new)
        self._declare_latencies(new, tpot_seconds)
        self._declare_steps(new)
        self._declare_replicas(new)
        self._declare_stages(new)
        self._declare_scheduler(new)

    def _declare_requests(self, new: _Registrar) -> None:
        self.requests_running = new.gauge("requests_running", "Sequences with a slot.")
        self.requests_waiting = new.gauge("requests_waiting", "Sequences in the queue.")
        self.requests = new.counter("requests", "Prompts that ended.", "api", "reason")
        self.requests_rejected = new.counter(
            "requests_rejected", "Requests that were not admitted.", "api", "reason"
        )
        self.http_requests = new.counter(
            "http_requests", "Responses of the HTTP API.", "route", "status"
        )
        self.prompt_tokens = new.counter("prompt_tokens", "Admitted prompt tokens.")
        self.generated_tokens = new.counter("generated_tokens", "Generated tokens.")

    def _declare_latencies(self, new: _Registrar, tpot_seconds: float | None) -> None:
        targets = () if tpot_seconds is None else (tpot_seconds,)
        per_token_buckets = sorted({*_PER_TOKEN_BUCKETS, *targets})
        self.time_to_first_token = new.histogram(
            "time_to_first_token_seconds",
            "From a prompt's arrival to its first token.",
            _FIRST_TOKEN_BUCKETS,
        )
        self.time_per_output_token = new.histogram(
            "time_per_output_token_seconds",
            "Mean time between the tokens of one prompt after the first.",
            per_token_buckets,
        )
        self.inter_token_latency = new.histogram(
            "inter_token_latency_seconds",
            "From one token of a prompt to its next.",
            per_token_buckets,
        )
        self.request_seconds = new.histogram(
            "request_seconds", "From a prompt's arrival to its end.", _REQUEST_BUCKETS
        )
        self.queue_seconds = new.histogram(
            "queue_seconds", "From a prompt's arrival to its first step.", _FIRST_TOKEN_BUCKETS
        )
        self.prefill_seconds = new.histogram(
            "prefill_seconds",
            "From a prompt's first step to its first token.",
            _FIRST_TOKEN_BUCKETS,
        )
        self.decode_seconds = new.histogram(
            "decode_seconds", "From a prompt's first token to its end.", _REQUEST_BUCKETS
        )
        self.prompt_length = new.histogram(
            "request_prompt_tokens", "Tokens of finished prompts.", _LENGTH_BUCKETS
        )
        self.generation_length = new.histogram(
            "request_generation_tokens", "Generated tokens of finished prompts.", _LENGTH_BUCKETS
        )

    def _declare_steps(self, new: _Registrar) -> None:
        self.steps = new.counter("steps", "Steps whose result arrived.", "replica")
        # All stages compute the same microbatches.
        self.step_tokens = new.histogram(
            "step_tokens",
            "Tokens of one microbatch: prefill chunks, or one per decoding sequence.",
            _LENGTH_BUCKETS,
            "replica",
            "phase",
        )
        self.step_sequences = new.histogram(
            "step_sequences",
            "Sequences of one microbatch, by phase.",
            _LENGTH_BUCKETS[:12],
            "replica",
            "phase",
        )
        self.preemptions = new.counter(
            "preemptions", "Sequences that lost their KV blocks and were queued again.", "replica"
        )
        self.prefix_queried_tokens = new.counter(
            "prefix_cache_queried_tokens",
            "Tokens of sequences that got a slot, after a preemption again.",
            "replica",
        )
        self.prefix_hit_tokens = new.counter(
            "prefix_cache_hit_tokens", "Queried tokens that the KV cache held.", "replica"
        )
        self.steps_in_flight = new.gauge("steps_in_flight", "Steps without a result.", "replica")
        self.free_credits = new.gauge(
            "free_credits", "Steps that stage 0 accepts now; at 0 the coordinator waits.", "replica"
        )

    def _declare_replicas(self, new: _Registrar) -> None:
        self.epochs = new.counter("epochs", "Opened epochs.", "replica")
        self.epoch_ends = new.counter("epoch_ends", "Ended epochs, by cause.", "replica", "cause")
        self.recovery_seconds = new.histogram(
            "recovery_seconds",
            "From the end of serving until requests are served again, by cause of the end.",
            _REQUEST_BUCKETS,
            "replica",
            "cause",
        )
        self.replica_requests = new.counter(
            "replica_requests", "Prompts that ended, by their last replica.", "replica"
        )
        self.handovers = new.counter(
            "handovers", "Prompts that another replica continued.", "replica"
        )
        self.replica_serving = new.gauge(
            "replica_serving", "1 while requests are served.", "replica"
        )
        self.workers = new.gauge("workers", "Workers in the mesh, by state.", "state")
        self.kv_blocks = new.gauge("kv_blocks", "KV blocks by state.", "replica", "state")
        self.kv_utilization = new.gauge(
            "kv_cache_utilization_ratio", "Share of the KV blocks in use.", "replica"
        )
        self.cache_config = new.info("cache_config", "The KV cache of a replica.", "replica")

    def _declare_stages(self, new: _Registrar) -> None:
        self.stage_compute_seconds = new.counter(
            "stage_compute_seconds", "Time in which the device computed steps.", *_STAGE
        )
        self.stage_idle_seconds = new.counter(
            "stage_idle_seconds", "Time in which the device waited for a step.", *_STAGE
        )
        self.stage_receive_seconds = new.counter(
            "stage_receive_seconds", "From a step's first to its last frame.", *_STAGE
        )
        self.stage_queue_seconds = new.counter(
            "stage_queue_seconds", "Time in which steps waited for the device.", *_STAGE
        )
        self.stage_send_seconds = new.counter(
            "stage_send_seconds", "From a step's output to its last frame written.", *_STAGE
        )
        self.stage_send_hidden_seconds = new.counter(
            "stage_send_hidden_seconds", "Part of the send time that overlapped compute.", *_STAGE
        )
        self.stage_up = new.gauge("stage_up", "1 while the stage serves.", *_STAGE)
        self.stage_layers = new.gauge("stage_layers", "Layers of the stage.", *_STAGE)
        self.hop_seconds = new.histogram(
            "hop_seconds",
            "From a step's output to its last frame written; `link` is as 0-1.",
            _HOP_BUCKETS,
            *_LINK,
        )
        self.hop_bytes = new.counter("hop_bytes", "Bytes that rank 0 sent over the link.", *_LINK)
        self.stage_sent_frames = new.counter(
            "stage_sent_frames", "Frames that rank 0 sent to the next stage.", *_STAGE
        )

    # Longer than other functions: a list of declarations.
    def _declare_scheduler(self, new: _Registrar) -> None:
        self.scheduler_steps_in_flight_target = new.gauge(
            "scheduler_steps_in_flight_target", "The policy's limit of steps in flight.", "replica"
        )
        self.scheduler_target_seconds = new.gauge(
            "scheduler_target_seconds", "Target time of a step on the slowest stage.", "replica"
        )
        self.scheduler_target_tokens = new.gauge(
            "scheduler_target_tokens", "Target tokens of a microbatch.", "replica"
        )
        self.scheduler_planned_seconds = new.gauge(
            "scheduler_planned_seconds",
            "A step's predicted time on the slowest stage, recent mean.",
            "replica",
        )
        self.scheduler_actual_seconds = new.gauge(
            "scheduler_actual_seconds",
            "A step's measured time on the slowest stage, recent mean.",
            "replica",
        )
        self.scheduler_overhead_seconds = new.gauge(
            "scheduler_overhead_seconds",
            "A step's round trip without queues and compute, recent mean.",
            "replica",
        )
        self.scheduler_prediction_error = new.gauge(
            "scheduler_prediction_error_ratio",
            "Recent relative error of predictions on the worst stage.",
            "replica",
        )
        self.scheduler_warmup = new.gauge(
            "scheduler_warmup", "1 while predictions are not used yet.", "replica"
        )
        self.scheduler_fallback = new.gauge(
            "scheduler_fallback",
            "1 while the policy throttle decides, since predictions are too far off.",
            "replica",
        )
        self.scheduler_limit_ratio = new.gauge(
            "scheduler_limit_ratio",
            "Measured relative to the limit: throughput, occupancy, tpot, ttft.",
            "replica",
            "limit",
        )
        self.scheduler_stage_error = new.gauge(
            "scheduler_stage_error_ratio",
            "Recent relative error of a stage's predictions.",
            *_STAGE,
        )
        self.scheduler_stage_resets = new.gauge(
            "scheduler_stage_resets", "Jumps of a stage's times in this epoch.", *_STAGE
        )
        self.scheduler_stage_cost = new.gauge(
            "scheduler_stage_cost_seconds",
            "Coefficients of a stage's cost model, in seconds per unit of each.",
            *_STAGE,
            "coefficient",
        )
        self.scheduler_bubble_seconds = new.counter(
            "scheduler_bubble_seconds",
            "Idle time of stages: starved, fill, imbalance, exposed_send, coordinator.",
            "replica",
            "cause",
        )
        self.scheduler_decisions = new.counter(
            "scheduler_decisions",
            "Decisions of the policy: cycles, more_in_flight, fewer_in_flight, fallbacks.",
            "replica",
            "decision",
        )
