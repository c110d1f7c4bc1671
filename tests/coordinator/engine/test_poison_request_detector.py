"""Which sequences are suspected of ending epochs, which one is isolated, and which is at fault."""

from coordinator.engine.poison_request_detector import PoisonRequestDetector


def make_detector() -> tuple[PoisonRequestDetector, list[int | None]]:
    """A detector and the arguments of its calls to `isolate`."""
    isolated: list[int | None] = []
    return PoisonRequestDetector(isolated.append), isolated


def end_with(detector: PoisonRequestDetector, *present: int) -> int | None:
    """Ends an epoch in which the sequences `present` ran."""
    for sequence_id in present:
        detector.started(sequence_id)
    return detector.end_epoch()


def test_one_end_makes_no_suspect() -> None:
    detector, _ = make_detector()
    assert end_with(detector, 1, 2) is None
    assert end_with(detector, 3) is None
    assert detector.isolated_id is None


def test_two_ends_isolate_the_suspects_one_after_the_other() -> None:
    detector, isolated = make_detector()
    end_with(detector, 1, 2)
    assert end_with(detector, 1, 2, 3) is None
    assert detector.isolated_id == 1
    detector.made_progress(1)
    assert detector.isolated_id == 2
    detector.made_progress(2)
    assert detector.isolated_id is None
    assert isolated[-3:] == [1, 2, None]


def test_planned_ends_make_no_suspect() -> None:
    detector, _ = make_detector()
    for _ in range(3):
        detector.started(1)
        assert detector.end_epoch(is_planned=True) is None
    assert (detector.isolated_id, detector.num_ends(1)) == (None, 0)


def test_end_while_one_sequence_runs_alone_is_its_fault() -> None:
    detector, _ = make_detector()
    for _ in range(2):
        end_with(detector, 1, 2)
    detector.started(1)
    detector.made_progress(1)
    assert end_with(detector, 2) == 2
    detector.forget(2)
    assert detector.isolated_id is None


def test_end_before_the_suspect_ran_is_not_its_fault() -> None:
    detector, _ = make_detector()
    for _ in range(2):
        end_with(detector, 1)
    assert end_with(detector) is None
    assert detector.isolated_id == 1


def test_suspect_that_leaves_makes_room_for_the_next() -> None:
    detector, _ = make_detector()
    for _ in range(2):
        end_with(detector, 1, 2)
    detector.forget(1)
    assert detector.isolated_id == 2


def test_suspect_of_another_replica_is_isolated_here() -> None:
    detector, isolated = make_detector()
    detector.adopt(7, 1)
    assert isolated == [None]
    detector.adopt(9, 2)
    assert isolated[-1] == 9
