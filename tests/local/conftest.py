"""No test of this folder may leave a process behind."""

from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.local.processes import survivors

NewChildren = Callable[[], list[psutil.Process]]


@pytest.fixture(autouse=True)
def new_children() -> Iterator[NewChildren]:
    """Tells which processes below us were started since the test began; at its end there must be none."""
    before = set(psutil.Process().children(recursive=True))  # the stack of the session, if it runs

    def started_since() -> list[psutil.Process]:
        return [process for process in psutil.Process().children(recursive=True) if process not in before]

    yield started_since
    assert survivors(started_since()) == []
