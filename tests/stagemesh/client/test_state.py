"""The client's picture of a mesh."""

from dataclasses import replace

from protos import mesh_pb2
from stagemesh.client.state import state_from_proto


def test_state_from_proto_keeps_plan_workers_and_load(
    state_message: mesh_pb2.GetStateResponse,
) -> None:
    state = state_from_proto(state_message)
    replica = state.replicas[0]
    assert (state.model, state.ready, state.num_waiting) == ("tiny", True, 1)
    assert [stage.num_layers for stage in replica.stages] == [20, 10]
    assert replica.stages[0].worker_ids == ("w0",)
    assert (replica.epoch, replica.num_kv_blocks_used, replica.num_slots_used) == (4, 7, 2)
    assert [worker.state for worker in state.workers] == ["serving", "serving"]
    assert state.workers[1].address == "127.0.0.1:50101"


def test_since_within_an_epoch_subtracts_the_sums(
    state_message: mesh_pb2.GetStateResponse,
) -> None:
    earlier = state_from_proto(state_message).replicas[0]
    stage = state_message.replicas[0].stages[0]
    stage.compute_seconds += 1.0
    stage.num_bytes_sent += 10
    state_message.replicas[0].num_steps += 3
    later = state_from_proto(state_message).replicas[0].since(earlier)
    assert later.num_steps == 3
    assert later.stages[0].compute_seconds == 1.0
    assert later.stages[0].idle_seconds == 0.0
    assert later.stages[0].num_bytes_sent == 10
    assert later.stages[0].weights_bytes == 2**30


def test_since_over_an_epochs_end_keeps_the_new_sums(
    state_message: mesh_pb2.GetStateResponse,
) -> None:
    replica = state_from_proto(state_message).replicas[0]
    assert replica.since(replace(replica, epoch=3)) == replica


def test_ranks_since_an_earlier_state_tell_what_each_did_meanwhile(
    state_message: mesh_pb2.GetStateResponse,
) -> None:
    activity = state_message.replicas[0].stages[0].ranks[0].activity
    activity.CopyFrom(mesh_pb2.RankActivity(num_steps=2, compute_seconds=3.0, wait_seconds=1.0))
    earlier = state_from_proto(state_message).replicas[0]
    activity.MergeFrom(mesh_pb2.RankActivity(num_steps=5, compute_seconds=7.5, num_bytes_sent=9))
    rank = state_from_proto(state_message).replicas[0].since(earlier).stages[0].ranks[0]
    assert (rank.num_steps, rank.compute_seconds, rank.wait_seconds) == (3, 4.5, 0.0)
    assert (rank.work_seconds, rank.num_bytes_sent) == (4.5, 9)
