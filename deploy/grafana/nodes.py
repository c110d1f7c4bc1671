"""The dashboard *nodes and devices*: processes, workers, what they compute on."""

from deploy.grafana.panels import RATE, Dashboard, Panel, gauge

_PROCESSES = (
    Panel("CPU", "short", ((f"rate(stagemesh_process_cpu_seconds_total{RATE})", "{{instance}}"),)),
    gauge("Resident memory", "bytes", "process_resident_memory_bytes", "{{instance}}"),
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
)

_WORKERS = (
    gauge("Weights", "bytes", "worker_weights_bytes", "{{worker}}"),
    gauge("Layers", "short", "worker_layers", "{{worker}}"),
    gauge("Open slots", "short", "worker_slots_used", "{{worker}}"),
)

_DEVICES = (
    gauge("Busy", "percentunit", "worker_device_utilization_ratio", "{{worker}}"),
    gauge("Memory", "bytes", "worker_device_memory_bytes", "{{worker}} {{state}}"),
    Panel(
        "Power and temperature of GPUs",
        "short",
        (
            ("stagemesh_worker_device_power_watts", "{{worker}} W"),
            ("stagemesh_worker_device_temperature_celsius", "{{worker}} °C"),
        ),
        only_on_gpus=True,
    ),
)

NODES = Dashboard(
    "stagemesh-nodes",
    "stagemesh: nodes and devices",
    (("Processes", _PROCESSES), ("Workers", _WORKERS), ("Devices", _DEVICES)),
)
