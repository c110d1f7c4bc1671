"""The dashboard *pipeline*: where the time of stages and ranks goes, links, steps, scheduler."""

from deploy.grafana.panels import (
    RATE,
    Dashboard,
    Panel,
    gauge,
    mean_rate,
    per_second,
    share_of_time,
)

_STAGES = (
    share_of_time("Computing", "stage_compute_seconds"),
    share_of_time("Idle", "stage_idle_seconds"),
    share_of_time("Steps waiting for the device", "stage_queue_seconds"),
    per_second(
        "Bubble by cause",
        "scheduler_bubble_seconds",
        "percentunit",
        "replica, cause",
        "replica {{replica}} {{cause}}",
    ),
    gauge("Stages that serve", "short", "stage_up", "replica {{replica}} stage {{stage}}"),
    gauge("Layers", "short", "stage_layers", "replica {{replica}} stage {{stage}}"),
)

_RANKS = (
    per_second("A rank computing", "worker_compute_seconds", "percentunit", "worker", "{{worker}}"),
    per_second(
        "A rank waiting for the stage's others",
        "worker_wait_seconds",
        "percentunit",
        "worker",
        "{{worker}}",
    ),
    per_second("A rank's activations", "worker_sent_bytes", "Bps", "worker", "{{worker}}"),
)

_LINKS = (
    Panel(
        "Time of a hop, p95",
        "s",
        (
            (
                "histogram_quantile(0.95, sum by (le, replica, link) "
                f"(rate(stagemesh_hop_seconds_bucket{RATE})))",
                "replica {{replica}} {{link}}",
            ),
        ),
    ),
    per_second("Activations", "hop_bytes", "Bps", "replica, link", "replica {{replica}} {{link}}"),
    share_of_time("Sending while computing", "stage_send_hidden_seconds"),
)

_STEPS = (
    per_second("Steps", "steps", "ops", "replica", "replica {{replica}}"),
    Panel(
        "Steps in flight",
        "short",
        (
            ("stagemesh_steps_in_flight", "replica {{replica}}"),
            ("stagemesh_scheduler_steps_in_flight_target", "replica {{replica}} target"),
            ("stagemesh_free_credits", "replica {{replica}} free credits"),
        ),
    ),
    Panel(
        "Mean microbatch",
        "short",
        (
            (mean_rate("step_tokens", "phase"), "tokens {{phase}}"),
            (mean_rate("step_sequences", "phase"), "sequences {{phase}}"),
        ),
    ),
)

_SCHEDULER = (
    Panel(
        "A step on the slowest stage",
        "s",
        (
            ("stagemesh_scheduler_planned_seconds", "replica {{replica}} planned"),
            ("stagemesh_scheduler_actual_seconds", "replica {{replica}} actual"),
            ("stagemesh_scheduler_target_seconds", "replica {{replica}} target"),
        ),
    ),
    Panel(
        "Predictions",
        "percentunit",
        (
            ("stagemesh_scheduler_prediction_error_ratio", "replica {{replica}} error"),
            ("stagemesh_scheduler_fallback", "replica {{replica}} fallback"),
            ("stagemesh_scheduler_warmup", "replica {{replica}} warm-up"),
        ),
    ),
    gauge(
        "Measured over possible",
        "percentunit",
        "scheduler_limit_ratio",
        "replica {{replica}} {{limit}}",
    ),
    per_second(
        "Decisions", "scheduler_decisions", "ops", "replica, decision", "{{replica}} {{decision}}"
    ),
)

PIPELINE = Dashboard(
    "stagemesh-pipeline",
    "stagemesh: pipeline",
    (
        ("Stages", _STAGES),
        ("Ranks", _RANKS),
        ("Links", _LINKS),
        ("Steps", _STEPS),
        ("Scheduler", _SCHEDULER),
    ),
)
