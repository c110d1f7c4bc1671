"""Connects a worker's state to its Prometheus metrics.

Gauges are read from the worker at each scrape; counters are increased as steps complete.
"""

import math

from protos import stage_pb2
from runtime.host.devices import DeviceProbe
from runtime.metrics.declarations import WorkerMetrics
from runtime.protocol.step import RankActivity
from stage_worker.service import WorkerHealth
from stage_worker.worker import Worker

_STATES = {
    "empty": stage_pb2.WORKER_STATE_EMPTY,
    "loading": stage_pb2.WORKER_STATE_LOADING,
    "loaded": stage_pb2.WORKER_STATE_LOADED,
    "serving": stage_pb2.WORKER_STATE_SERVING,
}


def expose(metrics: WorkerMetrics, worker: Worker, health: WorkerHealth) -> None:
    """Connects the gauges to the worker; they are read outside the event loop's thread."""
    metrics.joined.set_function(lambda: health.is_joined)
    for name, state in _STATES.items():
        metrics.state.labels(name).set_function(
            lambda state=state: worker.status().state == state  # type: ignore[misc]
        )
    metrics.layers.set_function(lambda: worker.status().assignment.num_layers)
    metrics.weights.set_function(lambda: worker.status().weights_bytes)
    metrics.slots_used.set_function(lambda: worker.status().num_slots_used)
    metrics.kv_blocks.labels("used").set_function(lambda: worker.status().num_kv_blocks_used)
    metrics.kv_blocks.labels("free").set_function(lambda: _num_free_blocks(worker.status()))


def expose_device(metrics: WorkerMetrics, probe: DeviceProbe) -> None:
    """Connects the gauges to the device; unknown values are NaN."""
    metrics.device_utilization.set_function(lambda: _number(probe().utilization))
    metrics.device_power.set_function(lambda: _number(probe().power_watts))
    metrics.device_temperature.set_function(lambda: _number(probe().temperature_celsius))
    metrics.device_memory.labels("used").set_function(lambda: _number(probe().memory_used_bytes))
    metrics.device_memory.labels("free").set_function(lambda: _number(probe().memory_free_bytes))


def count_activity(metrics: WorkerMetrics, activity: RankActivity) -> None:
    """Adds the times and bytes of a step or a send."""
    metrics.compute_seconds.inc(activity.compute_seconds)
    metrics.wait_seconds.inc(activity.wait_seconds)
    metrics.sent_bytes.inc(activity.num_bytes_sent)


def _number(figure: float | None) -> float:
    return math.nan if figure is None else figure


def _num_free_blocks(status: stage_pb2.StatusResponse) -> int:
    return status.num_kv_blocks - status.num_kv_blocks_used
