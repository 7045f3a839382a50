"""A broker that goes away under a client, and comes back."""

import asyncio
from pathlib import Path

import pytest

from headrace import Client
from headrace.local.kafka import LocalKafka
from headrace.local.settings import LocalKafkaSettings
from schemas.errors import BrokerUnavailable
from schemas.settings import KafkaSettings, Settings, TopicsSettings
from tests.integration.responder import Responder

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


async def test_a_stream_outlives_a_restart_of_the_broker_and_ends_with_a_remedy_if_it_stays_away(
    tmp_path: Path,
) -> None:
    async with LocalKafka(LocalKafkaSettings(data_dir=tmp_path)) as kafka:
        settings = Settings(
            kafka=KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, request_timeout_ms=3000),
            topics=TopicsSettings(partitions=1),
        )
        async with Responder(settings) as responder, Client(settings, timeout_s=60) as client:
            stream = client.stream("hi")
            first = asyncio.create_task(anext(stream))
            asked = await responder.asked()
            await responder.delta(asked, 0, "before, ")
            assert (await first).text == "before, "

            await kafka.stop()
            await kafka.start()
            await responder.delta(asked, 1, "after", finish_reason="stop")
            await responder.result(asked, "before, after", num_tokens=2)
            assert [delta.text async for delta in stream] == ["after"]

            waiting = asyncio.create_task(client.complete("hi", timeout_s=1))
            await responder.asked()
            await kafka.stop()
            with pytest.raises(BrokerUnavailable, match=r"does not answer.*headrace up"):
                await waiting
            with pytest.raises(BrokerUnavailable):
                await client.complete("hi", timeout_s=1)
