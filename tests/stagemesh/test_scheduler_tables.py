"""How a scheduler looks on a terminal."""

from rich.console import Console

from protos import mesh_pb2
from stagemesh.scheduler_tables import scheduler_tables
from stagemesh.state import state_from_proto


def shown(message: mesh_pb2.GetStateResponse) -> str:
    """The tables of the first replica as text."""
    console = Console(width=200)
    with console.capture() as captured:
        for table in scheduler_tables(state_from_proto(message).replicas[0]):
            console.print(table)
    return captured.get()


def test_scheduler_tables_show_target_costs_and_causes(
    state_message: mesh_pb2.GetStateResponse,
) -> None:
    state_message.replicas[0].scheduler.MergeFrom(
        mesh_pb2.SchedulerState(
            policy="adaptive",
            steps_in_flight_target=5,
            target_tokens=96,
            error=0.07,
            stages=[mesh_pb2.StageCostState(fixed=0.0125, num_records=300)] * 2,
            bubbles=mesh_pb2.BubbleState(starved=3.0, exposed_send=1.0),
            ratios=mesh_pb2.LimitRatios(throughput=0.91),
        )
    )
    text = shown(state_message)
    for part in ("adaptive", "of 5", "96 tokens", "off by 7%", "1.25e+04", "300", "exposed send"):
        assert part in text
    assert "25%" in text
    assert "throughput 0.91, occupancy -" in text


def test_scheduler_tables_before_the_first_epoch_say_that_nothing_is_known(
    state_message: mesh_pb2.GetStateResponse,
) -> None:
    text = shown(state_message)
    assert "none yet" in text
    assert "predictions" in text
