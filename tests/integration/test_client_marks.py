"""Takeover marks that no worker of ours writes: a reader that follows them comes to an end all the same."""

import pytest

from headrace.client.link import connected
from headrace.local.background import BackgroundStack
from schemas.requests import ChatRequest, Message
from schemas.settings import KafkaSettings, Settings, TopicsSettings
from tests.integration.responder import Asked, Responder

pytestmark = pytest.mark.integration

ASKED = Asked("r", b"r", 1, ChatRequest(model="m", messages=[Message(role="user", content="x")]))


@pytest.mark.parametrize("previous", [0, 1, 7], ids=["itself", "the next one", "one that is not there"])
async def test_marks_that_lead_in_a_circle_or_nowhere_are_followed_no_further(
    stack: BackgroundStack, namespace: str, previous: int
) -> None:
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=stack.bootstrap_servers),
        storage=stack.s3,
        topics=TopicsSettings(namespace=namespace, partitions=2),
    )
    async with Responder(settings) as responder:
        first = await responder.take_over(ASKED, previous_epoch=previous)
        second = await responder.take_over(ASKED, previous_epoch=first)
        await responder.commit_epoch(ASKED, second)
        async with connected(settings) as link:
            assert await link.epochs.at(1, 0) == {}
            assert await link.epochs.at(1, second + 1) == {responder.source(ASKED): second}


async def test_a_commit_that_points_to_something_else_is_passed_over(stack: BackgroundStack, namespace: str) -> None:
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=stack.bootstrap_servers),
        storage=stack.s3,
        topics=TopicsSettings(namespace=namespace, partitions=2),
    )
    async with Responder(settings) as responder:
        await responder.raw_token(ASKED, b"\xff no record")
        await responder.delta(ASKED, 0, "x")
        for offset in (0, 1):
            await responder.commit_epoch(ASKED, offset)
            async with connected(settings) as link:
                assert await link.epochs.at(1, 0) == {}
