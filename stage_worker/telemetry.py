"""What a worker shows to Prometheus: figures are read where they are, whenever somebody asks."""

from protos import stage_pb2
from runtime.metrics import WorkerMetrics
from stage_worker.health import WorkerHealth
from stage_worker.worker import Worker

_STATES = {
    "empty": stage_pb2.WORKER_STATE_EMPTY,
    "loading": stage_pb2.WORKER_STATE_LOADING,
    "loaded": stage_pb2.WORKER_STATE_LOADED,
    "serving": stage_pb2.WORKER_STATE_SERVING,
}


def expose(metrics: WorkerMetrics, worker: Worker, health: WorkerHealth) -> None:
    """Ties the metrics to the worker. They are read from another thread than the event loop's."""
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


def _num_free_blocks(status: stage_pb2.StatusResponse) -> int:
    return status.num_kv_blocks - status.num_kv_blocks_used
