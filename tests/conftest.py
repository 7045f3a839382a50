"""What every test may ask for: the real Kafka and S3, started once per session, and a name space of its own in them."""

import asyncio
import signal
from collections.abc import Iterator
from uuid import uuid4

import pytest

from headrace.local.background import BackgroundStack
from headrace.local.stack import LocalStackSettings, reset


def pytest_configure() -> None:
    """Let signals reach child processes: `&` in a script ignores Ctrl-C, nohup the hang-up, and children inherit it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundStack]:
    """Kafka and S3 on free ports; starts when the first test asks for it, stops with the session, even a killed one.

    Its child processes belong to the event loop that started them, and pytest-asyncio gives each test a loop of its
    own: so the stack lives in a thread with a loop that lasts as long as the session. Tests share it: use `namespace`.
    """
    settings = LocalStackSettings(data_dir=tmp_path_factory.mktemp("stack"))
    with BackgroundStack(settings) as running:
        yield running
    if not request.session.testsfailed:  # else its logs may say why
        asyncio.run(reset(settings.data_dir))


@pytest.fixture
def namespace() -> str:
    """A prefix for topics, groups and object keys that no other test has."""
    return f"t{uuid4().hex[:8]}"
