"""Our client with values that do not fit a record, on the real broker and S3; what answers is written by the test."""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from headrace.client import Client, TokenStream
from runtime.storage import ObjectStore
from schemas.claims import claim_for, fits
from schemas.contents import RESULT_CONTENTS
from schemas.errors import ClaimDamaged, ClaimMissing, HeadraceError, SettingsError
from schemas.requests import Message
from schemas.results import Result, ResultChoice
from schemas.settings import Settings, StorageSettings
from tests.integration.responder import Asked, Responder

pytestmark = pytest.mark.integration

TEXTS = ["Hello, you.", "Hello, we."]


@pytest.fixture
def objects(settings: Settings) -> Iterator[ObjectStore]:
    store = ObjectStore(settings.storage)
    yield store
    store.close()


class ClaimedAnswer:
    """A result of two choices whose content lies in an object, written beside two deltas."""

    def __init__(self, responder: Responder, asked: Asked) -> None:
        self._responder, self._asked = responder, asked
        self.whole = Result(
            id="c",
            object="chat.completion",
            created=0,
            model="m",
            request_id=asked.request_id,
            status="completed",
            choices=[
                ResultChoice(
                    index=index,
                    finish_reason="stop",
                    token_ids=[100, 101, 102],
                    message=Message(role="assistant", content=text),
                )
                for index, text in enumerate(TEXTS)
            ],
        )
        self.content = RESULT_CONTENTS.taken(self.whole)
        self.claim = claim_for(self.content, responder.names, tenant="default", now_ms=0)

    async def write(self) -> int:
        """The deltas show the first choice whole and half of the second, then comes the result."""
        await self._responder.delta(self._asked, 0, TEXTS[0], num_tokens=3, finish_reason="stop")
        await self._responder.delta(self._asked, 0, "Hello", num_tokens=1, choice=1)
        return await self._responder.end(self._asked, RESULT_CONTENTS.claimed(self.whole, self.claim))


async def read(stream: TokenStream) -> list[str]:
    texts = ["", ""]
    async for delta in stream:
        texts[delta.choice] += delta.text
    return texts


async def test_a_request_over_the_limit_leaves_its_heavy_fields_in_an_object(
    client: Client, responder: Responder, objects: ObjectStore
) -> None:
    text = "x" * 2_000_000
    reading = asyncio.create_task(client.complete(text, max_tokens=3, user="me"))
    asked = await responder.asked()
    claim = asked.request.claim
    assert claim is not None
    assert (asked.request.messages, asked.request.max_tokens, asked.request.user) == ([], 3, "me")
    content = await objects.get(claim.object)
    assert fits(claim, content)
    assert msgspec.json.decode(content) == {"messages": [{"role": "user", "content": text}]}
    await responder.result(asked, "Thanks.")
    assert (await reading).text == "Thanks."


async def test_a_client_without_storage_sends_nothing_that_it_could_not_put(
    settings: Settings, responder: Responder
) -> None:
    nowhere = msgspec.structs.replace(settings, storage=StorageSettings())
    async with Client(nowhere, timeout_s=30) as client:
        with pytest.raises(SettingsError, match=r"storage\.endpoint"):
            await client.complete("x" * 600_000)
        reading = asyncio.create_task(client.complete("small"))
        asked = await responder.asked()
        assert asked.request.messages[0].text == "small"
        await responder.result(asked, "Yes.")
        assert (await reading).text == "Yes."


async def test_what_no_delta_showed_comes_from_the_claimed_result(
    client: Client, responder: Responder, objects: ObjectStore
) -> None:
    stream = client.stream("hi", n=2)
    reading = asyncio.create_task(read(stream))
    answer = ClaimedAnswer(responder, await responder.asked())
    await objects.put(answer.claim.object, answer.content)
    await answer.write()
    assert await reading == TEXTS
    assert stream.result == answer.whole
    assert await read(client.tail(stream.request_id)) == TEXTS


async def test_the_result_of_a_repeated_request_is_followed_too(
    client: Client, responder: Responder, objects: ObjectStore
) -> None:
    first = asyncio.create_task(client.complete("hi", request_id="r-twice", n=2))
    answer = ClaimedAnswer(responder, await responder.asked())
    await objects.put(answer.claim.object, answer.content)
    offset = await answer.write()
    assert await first == answer.whole
    again = asyncio.create_task(client.complete("hi", request_id="r-twice", n=2))
    await responder.duplicate(await responder.asked(), offset)
    assert await again == answer.whole


@pytest.mark.parametrize(("fault", "error"), [("missing", ClaimMissing), ("damaged", ClaimDamaged)])
async def test_a_result_that_cannot_be_made_whole_is_an_error_behind_the_deltas(
    client: Client, responder: Responder, objects: ObjectStore, fault: str, error: type[HeadraceError]
) -> None:
    stream = client.stream("hi", n=2)
    first = asyncio.create_task(anext(stream))
    answer = ClaimedAnswer(responder, await responder.asked())
    if fault == "damaged":
        await objects.put(answer.claim.object, answer.content.replace(b"Hello", b"HELLO"))
    await answer.write()
    # A later terminal record of the same request is void.
    await responder.end(answer._asked, answer.whole)
    assert (await first).text == TEXTS[0]
    with pytest.raises(error):
        await read(stream)
