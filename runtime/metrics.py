"""Owns the declaration of every Prometheus metric: one prefix, base units, bounded labels.

It never measures. A process makes its class once, over its own registry, and sets the values.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

NAMESPACE: Final = "stagemesh"

_FIRST_TOKEN_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_PER_TOKEN_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
_STAGE: Final = ("replica", "stage")


class CoordinatorMetrics:
    """What the coordinator knows: requests, tokens, replicas and the stages' own reports.

    `reason` is `stop`, `length` or an error's code; `state` of a KV block is `used` or `free`.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._declare_requests(registry)
        self._declare_replicas(registry)
        self._declare_stages(registry)

    def _declare_requests(self, registry: CollectorRegistry) -> None:
        self.requests_running = Gauge(
            "requests_running", "Sequences that hold a slot.", (), NAMESPACE, registry=registry
        )
        self.requests_waiting = Gauge(
            "requests_waiting", "Sequences in the queue.", (), NAMESPACE, registry=registry
        )
        self.requests = Counter(
            "requests_total", "Prompts that ended.", ("reason",), NAMESPACE, registry=registry
        )
        self.prompt_tokens = Counter(
            "prompt_tokens_total", "Prompt tokens admitted.", (), NAMESPACE, registry=registry
        )
        self.generated_tokens = Counter(
            "generated_tokens_total", "Tokens generated.", (), NAMESPACE, registry=registry
        )
        self.time_to_first_token = Histogram(
            "time_to_first_token_seconds",
            "From a prompt's arrival to its first token.",
            (),
            NAMESPACE,
            registry=registry,
            buckets=_FIRST_TOKEN_BUCKETS,
        )
        self.time_per_output_token = Histogram(
            "time_per_output_token_seconds",
            "Mean time between the tokens of one prompt after the first.",
            (),
            NAMESPACE,
            registry=registry,
            buckets=_PER_TOKEN_BUCKETS,
        )

    def _declare_replicas(self, registry: CollectorRegistry) -> None:
        replica = ("replica",)
        self.steps = Counter(
            "steps_total", "Steps whose tokens came back.", replica, NAMESPACE, registry=registry
        )
        self.steps_in_flight = Gauge(
            "steps_in_flight", "Steps on their way.", replica, NAMESPACE, registry=registry
        )
        self.epochs = Counter(
            "epochs_total", "Epochs that were opened.", replica, NAMESPACE, registry=registry
        )
        self.kv_blocks = Gauge(
            "kv_blocks",
            "KV blocks by state.",
            ("replica", "state"),
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
        self.stage_sent_frames = counter("sent_frames", "Frames sent to the next stage.")
        self.stage_sent_bytes = counter("sent_bytes", "Activation bytes sent to the next stage.")
