"""What tests with a scripted gate and worker share. A file that needs other settings has a fixture of its own."""

from collections.abc import AsyncIterator

import pytest

from headrace import Client
from headrace.local.background import BackgroundStack
from schemas.settings import KafkaSettings, Settings, TopicsSettings
from tests.integration.responder import Responder


@pytest.fixture
def settings(stack: BackgroundStack, namespace: str) -> Settings:
    """The running stack, and a name space of three partitions that no other test has."""
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=stack.endpoints.bootstrap_servers),
        storage=stack.endpoints.storage,
        topics=TopicsSettings(namespace=namespace, partitions=3),
    )


@pytest.fixture
async def responder(settings: Settings) -> AsyncIterator[Responder]:
    """Plays gate and worker as the test says."""
    async with Responder(settings) as running:
        yield running


@pytest.fixture
async def client(settings: Settings, responder: Responder) -> AsyncIterator[Client]:
    """A connected client."""
    async with Client(settings, timeout_s=30) as connected:
        yield connected
