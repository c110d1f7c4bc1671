"""The telemetry of one replica: sums of its stages, epochs and recoveries."""

from prometheus_client import CollectorRegistry

from coordinator.membership.assignment import LoadReport
from coordinator.telemetry.replica_telemetry import ReplicaTelemetry
from runtime.errors import EpochEndedError, WorkerDiedError
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.step import SendTiming, StageTiming
from scheduler import StageRecord

LABELS = {"replica": "0", "cause": "worker_died"}


def make_telemetry() -> tuple[ReplicaTelemetry, CollectorRegistry]:
    registry = CollectorRegistry()
    return ReplicaTelemetry(0, (1, 1), CoordinatorMetrics(registry)), registry


def test_record_of_each_step_is_summed_per_stage() -> None:
    telemetry, registry = make_telemetry()
    send = SendTiming(step=0, seconds=0.5, hidden_seconds=0.25, num_frames=3, num_bytes=100)
    telemetry.record(StageRecord(0, 0, StageTiming(0.1, 0.2, 0.3, 0.4)))
    telemetry.record(StageRecord(1, 0, StageTiming(0.1, 0.2, 0.3, 0.4, send)))
    totals = telemetry.totals[0]
    assert (totals.num_steps, totals.compute_seconds, totals.num_bytes_sent) == (2, 0.6, 100)
    assert telemetry.totals[1].num_steps == 0
    labels = {"replica": "0", "stage": "0"}
    assert registry.get_sample_value("stagemesh_stage_compute_seconds_total", labels) == 0.6
    assert registry.get_sample_value("stagemesh_stage_sent_frames_total", labels) == 3


def test_start_epoch_resets_sums_and_keeps_loading_progress() -> None:
    telemetry, registry = make_telemetry()
    telemetry.record(StageRecord(0, 1, StageTiming(compute_seconds=1.0)))
    telemetry.loading[1][0].finish(LoadReport(8, 100, 200, 0.1, "f00"))
    telemetry.start_epoch()
    assert telemetry.totals[1].num_steps == 0
    assert telemetry.loading[1][0].weights_bytes == 100
    assert registry.get_sample_value("stagemesh_epochs_total", {"replica": "0"}) == 1


def test_record_with_a_send_counts_its_link() -> None:
    telemetry, registry = make_telemetry()
    send = SendTiming(step=0, seconds=0.5, hidden_seconds=0.25, num_frames=3, num_bytes=100)
    telemetry.record(StageRecord(0, 0, StageTiming(0.1, 0.2, 0.3, 0.4, send)))
    labels = {"replica": "0", "link": "0-1"}
    assert registry.get_sample_value("stagemesh_hop_seconds_sum", labels) == 0.5
    assert registry.get_sample_value("stagemesh_hop_bytes_total", labels) == 100
    telemetry.record(StageRecord(0, 1, StageTiming(0.1, 0.2, 0.3, 0.4)))
    nowhere = {"replica": "0", "link": "1-2"}
    assert registry.get_sample_value("stagemesh_hop_bytes_total", nowhere) is None


def test_recovery_lasts_from_stop_serving_to_start_serving() -> None:
    telemetry, registry = make_telemetry()
    telemetry.start_serving(1.0)
    assert registry.get_sample_value("stagemesh_recovery_seconds_count", LABELS) is None
    telemetry.stop_serving(10.0, 3, WorkerDiedError(worker="w", detail="gone"))
    telemetry.start_serving(12.5)
    assert registry.get_sample_value("stagemesh_recovery_seconds_sum", LABELS) == 2.5
    (recovery,) = telemetry.recoveries
    assert (recovery.epoch, recovery.cause, recovery.seconds) == (3, "worker_died", 2.5)


def test_recovery_reports_the_root_cause_of_an_ended_epoch() -> None:
    telemetry, _ = make_telemetry()
    telemetry.stop_serving(10.0, 3, EpochEndedError(cause="drained", detail="worker w leaves"))
    (recovery,) = telemetry.recoveries
    assert (recovery.cause, recovery.detail) == ("drained", "worker w leaves")


def test_export_stages_after_a_layout_with_more_stages_sets_the_others_to_zero() -> None:
    telemetry, registry = make_telemetry()

    def value(name: str, stage: int) -> float | None:
        labels = {"replica": "0", "stage": str(stage)}
        return registry.get_sample_value(f"stagemesh_stage_{name}", labels)

    telemetry.export_stages((2, 1, 3))
    assert [value("layers", stage) for stage in range(3)] == [2, 1, 3]
    telemetry.stop_serving(1.0, 1, WorkerDiedError(worker="w", detail="gone"))
    assert [value("up", stage) for stage in range(3)] == [0, 0, 0]
    telemetry.export_stages((4, 2))
    assert [value("up", stage) for stage in range(3)] == [1, 1, 0]
    assert value("layers", 2) == 0
