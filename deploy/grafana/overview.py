"""The dashboard *overview*: traffic, latency, what was refused, memory."""

from deploy.grafana.panels import RATE, Dashboard, Panel, gauge, per_second, quantiles, within

_TRAFFIC = (
    per_second("Prompts that ended", "requests", "reqps", "api, reason", "{{api}} {{reason}}"),
    Panel(
        "Tokens per second",
        "short",
        (
            (f"sum(rate(stagemesh_generated_tokens_total{RATE}))", "generated"),
            (f"sum(rate(stagemesh_prompt_tokens_total{RATE}))", "prompt"),
        ),
    ),
    Panel(
        "Requests",
        "short",
        (("stagemesh_requests_running", "running"), ("stagemesh_requests_waiting", "waiting")),
    ),
)

_LATENCY = (
    quantiles("Time to first token", "time_to_first_token_seconds"),
    quantiles("Inter-token latency", "inter_token_latency_seconds"),
    quantiles("Whole request", "request_seconds"),
    within("First token on time", "time_to_first_token_seconds", ("0.2", "0.5", "1.0")),
    within("Next token on time", "inter_token_latency_seconds", ("0.05", "0.1")),
    quantiles("Queue", "queue_seconds"),
)

_ERRORS = (
    per_second("Refused", "requests_rejected", "reqps", "api, reason", "{{api}} {{reason}}"),
    per_second("HTTP answers", "http_requests", "reqps", "route, status", "{{route}} {{status}}"),
    per_second("gRPC calls", "grpc_calls", "reqps", "method, code", "{{method}} {{code}}"),
)

_MEMORY = (
    gauge("KV cache used", "percentunit", "kv_cache_utilization_ratio", "replica {{replica}}"),
    gauge("KV blocks", "short", "kv_blocks", "replica {{replica}} {{state}}"),
    Panel(
        "Prompt tokens found in the cache",
        "percentunit",
        (
            (
                f"sum(rate(stagemesh_prefix_cache_hit_tokens_total{RATE}))"
                f" / sum(rate(stagemesh_prefix_cache_queried_tokens_total{RATE}))",
                "hits",
            ),
        ),
    ),
)

OVERVIEW = Dashboard(
    "stagemesh-overview",
    "stagemesh: overview",
    (("Traffic", _TRAFFIC), ("Latency", _LATENCY), ("Errors", _ERRORS), ("Memory", _MEMORY)),
)
