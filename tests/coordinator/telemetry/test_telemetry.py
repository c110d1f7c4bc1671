"""The sums of the stages' reports."""

from prometheus_client import CollectorRegistry

from coordinator.membership.assignment import LoadReport
from coordinator.telemetry.telemetry import ReplicaTelemetry, StepObserver
from runtime.errors import EpochEndedError, WorkerDiedError
from runtime.metrics.declarations import CoordinatorMetrics
from runtime.protocol.step import SendTiming, SequenceChunk, StageTiming, Step
from scheduler import StageRecord

LABELS = {"replica": "0", "cause": "worker_died"}


def make_telemetry() -> tuple[ReplicaTelemetry, CollectorRegistry]:
    registry = CollectorRegistry()
    return ReplicaTelemetry(0, (1, 1), CoordinatorMetrics(registry)), registry


def test_telemetry_records_are_summed_per_stage() -> None:
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


def test_telemetry_new_epoch_starts_from_zero_and_keeps_the_loading() -> None:
    telemetry, registry = make_telemetry()
    telemetry.record(StageRecord(0, 1, StageTiming(compute_seconds=1.0)))
    telemetry.loading[1][0].finish(LoadReport(8, 100, 200, 0.1, "f00"))
    telemetry.start_epoch()
    assert telemetry.totals[1].num_steps == 0
    assert telemetry.loading[1][0].weights_bytes == 100
    assert registry.get_sample_value("stagemesh_epochs_total", {"replica": "0"}) == 1


def test_telemetry_send_is_counted_by_its_link() -> None:
    telemetry, registry = make_telemetry()
    send = SendTiming(step=0, seconds=0.5, hidden_seconds=0.25, num_frames=3, num_bytes=100)
    telemetry.record(StageRecord(0, 0, StageTiming(0.1, 0.2, 0.3, 0.4, send)))
    labels = {"replica": "0", "link": "0-1"}
    assert registry.get_sample_value("stagemesh_hop_seconds_sum", labels) == 0.5
    assert registry.get_sample_value("stagemesh_hop_bytes_total", labels) == 100
    telemetry.record(StageRecord(0, 1, StageTiming(0.1, 0.2, 0.3, 0.4)))
    nowhere = {"replica": "0", "link": "1-2"}
    assert registry.get_sample_value("stagemesh_hop_bytes_total", nowhere) is None


def test_telemetry_recovery_lasts_from_the_end_of_serving_to_its_return() -> None:
    telemetry, registry = make_telemetry()
    telemetry.start_serving(1.0)
    assert registry.get_sample_value("stagemesh_recovery_seconds_count", LABELS) is None
    telemetry.stop_serving(10.0, 3, WorkerDiedError(worker="w", detail="gone"))
    telemetry.start_serving(12.5)
    assert registry.get_sample_value("stagemesh_recovery_seconds_sum", LABELS) == 2.5
    (recovery,) = telemetry.recoveries
    assert (recovery.epoch, recovery.cause, recovery.seconds) == (3, "worker_died", 2.5)


def test_telemetry_recovery_names_what_ended_the_epoch_and_not_that_it_ended() -> None:
    telemetry, _ = make_telemetry()
    telemetry.stop_serving(10.0, 3, EpochEndedError(cause="drained", detail="worker w leaves"))
    (recovery,) = telemetry.recoveries
    assert (recovery.cause, recovery.detail) == ("drained", "worker w leaves")


def test_step_observer_counts_each_token_of_the_prefix_cache_once() -> None:
    registry = CollectorRegistry()
    observer = StepObserver(CoordinatorMetrics(registry), 0)
    observer.observe_prefix_cache(num_queried_tokens=10, num_hit_tokens=0)
    observer.observe_prefix_cache(num_queried_tokens=30, num_hit_tokens=16)
    values = [
        registry.get_sample_value(f"stagemesh_prefix_cache_{what}_tokens_total", {"replica": "0"})
        for what in ("queried", "hit")
    ]
    assert values == [30.0, 16.0]


def test_step_observer_counts_what_steps_carry_and_each_preemption_once() -> None:
    registry = CollectorRegistry()
    observer = StepObserver(CoordinatorMetrics(registry), 0)
    chunks = (
        SequenceChunk(0, 0, (5, 6, 7)),
        SequenceChunk(1, 9, (5,), sample=True),
        SequenceChunk(2, 3, (6,), sample=True),
    )
    observer.observe(Step(0, chunks=chunks), num_preemptions=2)
    observer.observe(Step(1), num_preemptions=3)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"stagemesh_{name}", {"replica": "0", **labels})

    assert value("step_tokens_sum", phase="prefill") == 3.0
    assert value("step_tokens_sum", phase="decode") == 2.0
    assert value("step_sequences_sum", phase="decode") == 2.0
    assert value("step_tokens_count", phase="prefill") == 1.0
    assert value("preemptions_total") == 3.0


def test_telemetry_shows_the_stages_that_serve_also_when_they_become_fewer() -> None:
    telemetry, registry = make_telemetry()

    def value(name: str, stage: int) -> float | None:
        labels = {"replica": "0", "stage": str(stage)}
        return registry.get_sample_value(f"stagemesh_stage_{name}", labels)

    telemetry.show_stages((2, 1, 3))
    assert [value("layers", stage) for stage in range(3)] == [2, 1, 3]
    telemetry.stop_serving(1.0, 1, WorkerDiedError(worker="w", detail="gone"))
    assert [value("up", stage) for stage in range(3)] == [0, 0, 0]
    telemetry.show_stages((4, 2))
    assert [value("up", stage) for stage in range(3)] == [1, 1, 0]
    assert value("layers", 2) == 0
