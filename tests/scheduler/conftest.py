"""Checks the integrity of every scheduler at the end of its test."""

from collections.abc import Iterator

import pytest

from tests.integrity import checked_schedulers


@pytest.fixture(autouse=True)
def integrity() -> Iterator[None]:
    """Checks every scheduler that the test made."""
    with checked_schedulers():
        yield
