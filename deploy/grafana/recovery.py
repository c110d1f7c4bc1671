"""The dashboard *recovery*: what serves, what ended, how long it took, what was done again."""

from deploy.grafana.panels import Dashboard, Panel, gauge, per_second

_STATE = (
    gauge("Serving", "short", "replica_serving", "replica {{replica}}"),
    gauge("Workers in the mesh", "short", "workers", "{{state}}"),
    gauge("Epochs opened", "short", "epochs_total", "replica {{replica}}"),
)

_ENDS = (
    gauge("Epochs that ended, by cause", "short", "epoch_ends_total", "{{replica}} {{cause}}"),
    Panel(
        "Mean recovery, by cause",
        "s",
        (
            (
                "stagemesh_recovery_seconds_sum / stagemesh_recovery_seconds_count",
                "replica {{replica}} {{cause}}",
            ),
        ),
    ),
    per_second("Requests handed over", "handovers", "ops", "replica", "replica {{replica}}"),
    per_second("Preemptions", "preemptions", "ops", "replica", "replica {{replica}}"),
)

RECOVERY = Dashboard(
    "stagemesh-recovery",
    "stagemesh: recovery",
    (("State", _STATE), ("Ends and recoveries", _ENDS)),
)
