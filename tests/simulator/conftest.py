"""Checks the integrity of every scheduler at the end of its test."""

from collections.abc import Iterator

import pytest

from tests.integrity import checked_schedulers


@pytest.fixture(autouse=True)
def integrity() -> Iterator[None]:
    """Whatever happened to a scheduler, it has lost nothing."""
    with checked_schedulers():
        yield
