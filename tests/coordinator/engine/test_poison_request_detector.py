"""Who is suspected of ending epochs, who runs alone, and who is blamed."""

from coordinator.engine.poison_request_detector import PoisonRequestDetector


def make_suspects() -> tuple[PoisonRequestDetector, list[int | None]]:
    """With everybody that `isolate` was told of."""
    told: list[int | None] = []
    return PoisonRequestDetector(told.append), told


def end_with(detector: PoisonRequestDetector, *present: int) -> int | None:
    """An epoch in which these ran, and its end."""
    for sequence_id in present:
        detector.started(sequence_id)
    return detector.end_epoch()


def test_one_end_makes_no_suspect() -> None:
    detector, _ = make_suspects()
    assert end_with(detector, 1, 2) is None
    assert end_with(detector, 3) is None
    assert detector.isolated_id is None


def test_two_ends_put_those_that_ran_alone_one_after_the_other() -> None:
    detector, told = make_suspects()
    end_with(detector, 1, 2)
    assert end_with(detector, 1, 2, 3) is None
    assert detector.isolated_id == 1
    detector.made_progress(1)
    assert detector.isolated_id == 2
    detector.made_progress(2)
    assert detector.isolated_id is None
    assert told[-3:] == [1, 2, None]


def test_end_while_one_runs_alone_is_its_fault() -> None:
    detector, _ = make_suspects()
    for _ in range(2):
        end_with(detector, 1, 2)
    detector.started(1)
    detector.made_progress(1)
    assert end_with(detector, 2) == 2
    detector.forget(2)
    assert detector.isolated_id is None


def test_end_before_the_suspect_ran_is_not_its_fault() -> None:
    detector, _ = make_suspects()
    for _ in range(2):
        end_with(detector, 1)
    assert end_with(detector) is None
    assert detector.isolated_id == 1


def test_suspect_that_leaves_makes_room_for_the_next() -> None:
    detector, _ = make_suspects()
    for _ in range(2):
        end_with(detector, 1, 2)
    detector.forget(1)
    assert detector.isolated_id == 2
