"""What the dashboard of stages, hops, steps and their scheduler shows."""

from deploy.grafana.panels import RATE, Dashboard, Panel, per_second, share_of_time


def _mean_rate(histogram: str) -> str:
    """The mean of what a histogram observed lately."""
    name = f"stagemesh_{histogram}"
    return f"sum(rate({name}_sum{RATE})) / sum(rate({name}_count{RATE}))"


PIPELINE = Dashboard(
    "stagemesh-pipeline",
    "stagemesh: pipeline",
    (
        (
            "Stages",
            (
                share_of_time("Computing", "stage_compute_seconds"),
                share_of_time("Idle", "stage_idle_seconds"),
                share_of_time("Steps waiting for the device", "stage_queue_seconds"),
            ),
        ),
        (
            "Hops",
            (
                share_of_time("Sending", "stage_send_seconds"),
                share_of_time("Sending while computing", "stage_send_hidden_seconds"),
                per_second(
                    "Activations", "stage_sent_bytes", "Bps", "replica, stage", "after {{stage}}"
                ),
            ),
        ),
        (
            "Steps",
            (
                per_second("Steps", "steps", "ops", "replica", "replica {{replica}}"),
                Panel(
                    "Steps in flight",
                    "short",
                    (("stagemesh_steps_in_flight", "replica {{replica}}"),),
                ),
                Panel(
                    "Mean microbatch",
                    "short",
                    (
                        (_mean_rate("step_tokens"), "tokens"),
                        (_mean_rate("step_sequences"), "sequences"),
                    ),
                ),
            ),
        ),
        (
            "Scheduler",
            (
                per_second(
                    "Idle stages", "scheduler_bubble_seconds", "short", "cause", "{{cause}}"
                ),
                Panel(
                    "A step on the slowest stage",
                    "s",
                    (
                        ("stagemesh_scheduler_planned_seconds", "planned, replica {{replica}}"),
                        ("stagemesh_scheduler_actual_seconds", "measured, replica {{replica}}"),
                    ),
                ),
                Panel(
                    "Measured over possible",
                    "percentunit",
                    (("stagemesh_scheduler_limit_ratio", "{{limit}}, replica {{replica}}"),),
                ),
            ),
        ),
    ),
)
