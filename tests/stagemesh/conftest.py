"""A mesh of two stages as its state message, for what shows or converts states."""

import pytest

from protos import mesh_pb2, stage_pb2

SERVING = stage_pb2.WORKER_STATE_SERVING


@pytest.fixture
def state_message() -> mesh_pb2.GetStateResponse:
    """Two workers with 20 and 10 layers; the first stage was busy for 3 of 4 seconds."""
    workers = [mesh_pb2.WorkerInfo(hello=_hello(index), state=SERVING) for index in range(2)]
    return mesh_pb2.GetStateResponse(
        model="tiny",
        ready=True,
        phase="serving",
        num_running=2,
        num_waiting=1,
        replicas=[_replica()],
        workers=workers,
        uptime_seconds=5.0,
        max_model_len=512,
    )


def _hello(index: int) -> mesh_pb2.Hello:
    return mesh_pb2.Hello(
        worker_id=f"w{index}",
        node="here",
        address=f"127.0.0.1:5010{index}",
        pid=100 + index,
        device=mesh_pb2.Device(kind="cpu", memory_bytes=2**33),
    )


def _replica() -> mesh_pb2.ReplicaState:
    return mesh_pb2.ReplicaState(
        epoch=stage_pb2.EpochId(coordinator_id="c", counter=4),
        num_kv_blocks=100,
        num_kv_blocks_used=7,
        block_size=16,
        num_slots_used=2,
        max_sequences=64,
        num_steps_in_flight=2,
        num_steps=11,
        stages=[_first_stage(), _last_stage()],
    )


def _first_stage() -> mesh_pb2.StageState:
    return mesh_pb2.StageState(
        stage=0,
        first_layer=0,
        num_layers=20,
        worker_ids=["w0"],
        compute_seconds=3.0,
        idle_seconds=1.0,
        send_seconds=0.5,
        send_hidden_seconds=0.4,
        num_frames_sent=12,
        num_bytes_sent=3 * 2**20,
        num_steps=11,
        weights_bytes=2**30,
        peak_rss_bytes=2**31,
        ranks=[mesh_pb2.RankState(worker_id="w0", weights_bytes=2**30, peak_rss_bytes=2**31)],
    )


def _last_stage() -> mesh_pb2.StageState:
    return mesh_pb2.StageState(
        stage=1,
        first_layer=20,
        num_layers=10,
        worker_ids=["w1"],
        num_steps=11,
        ranks=[mesh_pb2.RankState(worker_id="w1")],
    )
