"""Which workers are ended because they do not come back to the mesh."""

from stagemesh.launcher.absence import MissingWorkers


def test_absence_worker_out_of_the_mesh_for_too_long_is_named() -> None:
    absences = MissingWorkers(10.0, 60.0)
    assert absences.note({1, 2}, {1, 2}, 0.0) == []
    assert absences.note({1, 2}, {1}, 9.0) == []
    assert absences.note({1, 2}, {1}, 11.0) == [2]


def test_absence_worker_that_comes_back_starts_anew() -> None:
    absences = MissingWorkers(10.0, 60.0)
    absences.note({1}, {1}, 0.0)
    absences.note({1}, set(), 9.0)
    absences.note({1}, {1}, 10.0)
    assert absences.note({1}, set(), 19.0) == []


def test_absence_process_that_never_joined_or_has_ended_is_left_alone() -> None:
    absences = MissingWorkers(10.0, 60.0)
    absences.note({1, 2}, {2}, 0.0)
    assert absences.note({1}, set(), 100.0) == []


def test_absence_worker_that_left_to_end_has_more_time() -> None:
    absences = MissingWorkers(10.0, 60.0)
    absences.note({1}, {1}, 0.0)
    assert absences.note({1}, set(), 11.0) == [1]
    assert not absences.is_overdue(1, 11.0)
    assert absences.is_overdue(1, 61.0)
