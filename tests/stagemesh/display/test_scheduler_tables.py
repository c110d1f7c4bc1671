"""How a scheduler looks on a terminal."""

from rich.console import Console

from protos import mesh_pb2
from stagemesh.client.state import state_from_proto
from stagemesh.display.scheduler_tables import scheduler_tables


def shown(message: mesh_pb2.GetStateResponse, width: int = 200) -> str:
    """The tables of the first replica as text."""
    console = Console(width=width)
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
    for part in ("adaptive", "of 5", "96 tokens", "off by 7%", "12500", "300", "exposed send"):
        assert part in text
    assert "25%" in text
    assert "throughput 0.91, occupancy -" in text


def test_scheduler_tables_of_many_stages_fit_a_terminal(
    state_message: mesh_pb2.GetStateResponse,
) -> None:
    costs = mesh_pb2.StageCostState(fixed=0.01942, per_attention=5.955e-8, num_records=111)
    state_message.replicas[0].scheduler.MergeFrom(mesh_pb2.SchedulerState(stages=[costs] * 6))
    text = shown(state_message, width=80)
    assert text.count("19420") == 6
    assert text.count("0.05955") == 6
    assert text.count("per_attention") == 1


def test_scheduler_tables_before_the_first_epoch_say_that_nothing_is_known(
    state_message: mesh_pb2.GetStateResponse,
) -> None:
    text = shown(state_message)
    assert "none yet" in text
    assert "predictions" in text
