"""Tests of the metrics' names and labels, as Prometheus reads them."""

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from runtime.metrics.declarations import CoordinatorMetrics


def test_metrics_of_a_new_registry_share_one_prefix() -> None:
    registry = CollectorRegistry()
    CoordinatorMetrics(registry)

    assert all(family.name.startswith("stagemesh_") for family in registry.collect())


def test_labelled_metrics_once_set_are_exposed_with_base_units() -> None:
    metrics = CoordinatorMetrics(CollectorRegistry())
    metrics.requests.labels(api="http", reason="stop").inc()
    metrics.kv_blocks.labels(replica=0, state="used").set(3)
    metrics.stage_compute_seconds.labels(replica=0, stage=1).inc(0.5)

    text = generate_latest(metrics.registry).decode()

    assert 'stagemesh_requests_total{api="http",reason="stop"} 1.0' in text
    assert 'stagemesh_kv_blocks{replica="0",state="used"} 3.0' in text
    assert 'stagemesh_stage_compute_seconds_total{replica="0",stage="1"} 0.5' in text


def test_latency_target_that_was_asked_for_is_an_edge_of_the_buckets() -> None:
    metrics = CoordinatorMetrics(CollectorRegistry(), tpot_seconds=0.033)
    metrics.inter_token_latency.observe(0.0335)
    metrics.time_per_output_token.observe(0.0325)
    text = generate_latest(metrics.registry).decode()
    assert 'stagemesh_inter_token_latency_seconds_bucket{le="0.033"} 0.0' in text
    assert 'stagemesh_time_per_output_token_seconds_bucket{le="0.033"} 1.0' in text
