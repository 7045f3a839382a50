"""Our client and a request that was sent before: whatever the log says of the first one, the reader comes to an end."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from headrace import Client
from headrace.client.messages import new_request_id
from headrace.local.background import BackgroundStack
from runtime.kafka import make_admin, running
from schemas.errors import AlreadyEnded
from schemas.results import Result
from schemas.settings import KafkaSettings, Settings, TopicsSettings
from tests.integration.responder import Asked, Responder

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(stack: BackgroundStack, namespace: str) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=stack.bootstrap_servers),
        storage=stack.s3,
        topics=TopicsSettings(namespace=namespace, partitions=2),
    )


@pytest.fixture
async def responder(settings: Settings) -> AsyncIterator[Responder]:
    async with Responder(settings) as running_one:
        yield running_one


@pytest.fixture
async def client(settings: Settings, responder: Responder) -> AsyncIterator[Client]:
    async with Client(settings, timeout_s=30) as connected:
        yield connected


async def ask(client: Client, responder: Responder, request_id: str, session: str | None = None) -> Asked:
    """Ask, and be answered with "once" after results of others."""
    waiting = asyncio.create_task(client.complete("hi", request_id=request_id, session=session))
    asked = await responder.asked()
    await responder.result(asked, "another tenant's", tenant="other")
    await responder.delta(asked, 0, "once", finish_reason="stop")
    await responder.result(asked, "once")
    assert (await waiting).text == "once"
    return asked


async def ask_again(client: Client, responder: Responder, asked: Asked) -> "asyncio.Task[Result]":
    again = client.complete("hi", request_id=asked.request_id, session=asked.request.session)
    waiting = asyncio.create_task(again)
    await responder.asked()
    return waiting


@pytest.mark.parametrize("request_id", ["my-own-id", "time"])
@pytest.mark.parametrize("session", [None, "s-1"])
async def test_the_result_of_one_that_has_ended_is_found_without_its_place(
    client: Client, responder: Responder, request_id: str, session: str | None
) -> None:
    asked = await ask(client, responder, new_request_id() if request_id == "time" else request_id, session)
    waiting = await ask_again(client, responder, asked)
    await responder.duplicate(asked, None, has_ended=True)
    assert (await waiting).text == "once"


async def test_the_result_of_one_that_still_runs_is_waited_for(client: Client, responder: Responder) -> None:
    first = asyncio.create_task(client.complete("hi", request_id="mine"))
    asked = await responder.asked()
    second = await ask_again(client, responder, asked)
    await responder.duplicate(asked, None)
    await responder.delta(asked, 0, "for both", finish_reason="stop")
    await responder.result(asked, "for both")
    assert [(await first).text, (await second).text] == ["for both", "for both"]


@pytest.mark.parametrize("knows_place", [True, False], ids=["with its place", "without it"])
async def test_a_result_that_is_not_kept_any_more_is_an_error_and_no_silence(
    client: Client, responder: Responder, settings: Settings, knows_place: bool
) -> None:
    asked = await ask(client, responder, "mine")
    results = TopicPartition(responder.names.results, asked.partition)
    async with running(make_admin(settings.kafka)) as admin:
        await admin.delete_records({results: RecordsToDelete(before_offset=2)})
    waiting = await ask_again(client, responder, asked)
    await responder.duplicate(asked, 1 if knows_place else None, has_ended=True)
    with pytest.raises(AlreadyEnded, match=r"mine was sent before .* under a new id"):
        await waiting


async def test_a_place_that_holds_no_result_is_no_answer(client: Client, responder: Responder) -> None:
    """A record of a foreign hand, or of another topic of the same name: it must neither end nor harm the stream."""
    waiting = asyncio.create_task(client.complete("hi", request_id="mine"))
    asked = await responder.asked()
    await responder.duplicate(asked, 2**63 - 1)
    await responder.duplicate(asked, 0)
    await responder.result(asked, "right")
    assert (await waiting).text == "right"
