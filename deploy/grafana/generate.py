"""Makes the dashboards: `python -m deploy.grafana.generate`; --check says if they are current.

It refuses a panel that asks for a metric which `runtime/metrics.py` does not declare.
"""

import re
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

from deploy.grafana.panels import (
    RATE,
    Dashboard,
    Panel,
    per_second,
    quantiles,
    to_json,
    within,
)
from deploy.grafana.pipeline import PIPELINE
from runtime.metrics import CoordinatorMetrics, WorkerMetrics

FOLDER = Path(__file__).parent / "dashboards"


OVERVIEW = Dashboard(
    "stagemesh-overview",
    "stagemesh: overview",
    (
        (
            "Traffic",
            (
                per_second("Prompts that ended", "requests", "reqps", "reason", "{{reason}}"),
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
                    (
                        ("stagemesh_requests_running", "running"),
                        ("stagemesh_requests_waiting", "waiting"),
                    ),
                ),
            ),
        ),
        (
            "Latency",
            (
                quantiles("Time to first token", "time_to_first_token_seconds"),
                quantiles("Inter-token latency", "inter_token_latency_seconds"),
                quantiles("Whole request", "request_seconds"),
                within("First token on time", "time_to_first_token_seconds", ("0.2", "0.5", "1.0")),
                within("Next token on time", "inter_token_latency_seconds", ("0.05", "0.1")),
                quantiles("Queue", "queue_seconds"),
            ),
        ),
        (
            "Memory",
            (
                Panel(
                    "KV cache used",
                    "percentunit",
                    (("stagemesh_kv_cache_utilization_ratio", "replica {{replica}}"),),
                ),
                Panel(
                    "KV blocks",
                    "short",
                    (("stagemesh_kv_blocks", "replica {{replica}} {{state}}"),),
                ),
            ),
        ),
    ),
)

NODES = Dashboard(
    "stagemesh-nodes",
    "stagemesh: nodes and recovery",
    (
        (
            "Processes",
            (
                Panel(
                    "CPU",
                    "short",
                    ((f"rate(stagemesh_process_cpu_seconds_total{RATE})", "{{instance}}"),),
                ),
                Panel(
                    "Resident memory",
                    "bytes",
                    (("stagemesh_process_resident_memory_bytes", "{{instance}}"),),
                ),
                Panel(
                    "Event loop lag, p99",
                    "s",
                    (
                        (
                            "histogram_quantile(0.99, sum by (le, instance) "
                            f"(rate(stagemesh_event_loop_lag_seconds_bucket{RATE})))",
                            "{{instance}}",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Workers",
            (
                Panel("Weights", "bytes", (("stagemesh_worker_weights_bytes", "{{worker}}"),)),
                Panel("Layers", "short", (("stagemesh_worker_layers", "{{worker}}"),)),
                Panel("Open slots", "short", (("stagemesh_worker_slots_used", "{{worker}}"),)),
            ),
        ),
        (
            "Recovery",
            (
                Panel("Serving", "short", (("stagemesh_replica_serving", "replica {{replica}}"),)),
                Panel(
                    "Mean recovery",
                    "s",
                    (
                        (
                            "stagemesh_recovery_seconds_sum / stagemesh_recovery_seconds_count",
                            "replica {{replica}}",
                        ),
                    ),
                ),
                Panel("Preemptions", "short", (("stagemesh_preemptions_total", "all"),)),
                Panel(
                    "Tokens found in the prefix cache",
                    "percentunit",
                    (
                        (
                            "sum(rate(stagemesh_prefix_cache_hit_tokens_total[$__rate_interval]))"
                            " / sum(rate(stagemesh_prefix_cache_queried_tokens_total"
                            "[$__rate_interval]))",
                            "hits",
                        ),
                    ),
                ),
                Panel("Workers in the mesh", "short", (("stagemesh_workers", "{{state}}"),)),
                Panel(
                    "Epochs that ended, by cause",
                    "short",
                    (("stagemesh_epoch_ends_total", "{{cause}}"),),
                ),
            ),
        ),
    ),
)

DASHBOARDS = (OVERVIEW, PIPELINE, NODES)


def expressions() -> list[str]:
    """Every panel's queries."""
    return [
        expression
        for dashboard in DASHBOARDS
        for _, panels in dashboard.rows
        for panel in panels
        for expression, _ in panel.queries
    ]


def undeclared() -> set[str]:
    """Names of series that no process of ours has."""
    wanted = {name for query in expressions() for name in re.findall(r"stagemesh_\w+", query)}
    return wanted - _declared()


def _declared() -> set[str]:
    names: set[str] = set()
    for metrics in (CoordinatorMetrics(CollectorRegistry()), WorkerMetrics(CollectorRegistry())):
        for family in metrics.registry.collect():
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
            names |= {family.name + suffix for suffix in suffixes.get(family.type, ("",))}
    return names


def main() -> str | None:
    """What is wrong, if anything."""
    if missing := undeclared():
        return f"panels ask for metrics that are not declared: {', '.join(sorted(missing))}"
    wanted = {FOLDER / f"{each.uid}.json": to_json(each) for each in DASHBOARDS}
    if "--check" not in sys.argv[1:]:
        for path, text in wanted.items():
            path.write_text(text)
    elif any(not path.exists() or path.read_text() != text for path, text in wanted.items()):
        return "deploy/grafana/dashboards is not current: run python -m deploy.grafana.generate"
    return None


if __name__ == "__main__":
    sys.exit(main())
