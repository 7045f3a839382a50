"""What does not fit a record travels all the same: real Kafka, real S3, every role, our client and plain ones."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio

from headrace.local.background import BackgroundStack
from schemas.claims import MAX_INLINE_BYTES
from schemas.errors import RequestFailed
from tests.consumers.worker.tiny_model import MODEL_NAME
from tests.integration.claims_world import World, running_world

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

LARGE_PROGRAM = Path(__file__).parent.parent.parent / "docs" / "clients" / "python" / "large.py"
USER = [{"role": "user", "content": "hi"}]
SHORT: dict[str, Any] = {"messages": USER, "max_tokens": 4, "temperature": 0}
PAD = {"pad": "x" * 700_000}
# An answer with all of this has more than a megabyte.
MUCH: dict[str, Any] = {"n": 8, "logprobs": True, "top_logprobs": 20, "max_tokens": 300, "ignore_eos": True}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(stack: BackgroundStack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with running_world(stack, f"claims{uuid4().hex[:6]}", tmp_path_factory.mktemp("world")) as running:
        yield running


def fresh_id() -> str:
    return f"r{uuid4().hex[:10]}"


def choice_tokens(result: dict[str, Any]) -> list[list[int]]:
    return [choice["token_ids"] for choice in result["choices"]]


async def test_a_request_of_700_kb_is_answered_as_if_it_were_small(world: World) -> None:
    """Its metadata is large, it has an empty list of tools and a field of tomorrow, and its client knows no claims."""
    small, large = fresh_id(), fresh_id()
    await world.produce(small, **SHORT, seed=1)
    before = await world.claim_keys()
    await world.produce(large, **SHORT, seed=1, metadata=PAD, tools=[], of_tomorrow=[{"a": None}])
    answers = [await world.answer(request_id) for request_id in (small, large)]
    assert [answer.result["status"] for answer in answers] == ["completed", "completed"]
    assert answers[0].text == answers[1].text
    (key,) = await world.claim_keys() - before
    content = json.loads(await world.objects.get(key))
    assert content == {"metadata": PAD}


async def test_a_plain_client_writes_and_follows_claims_with_the_program_of_the_documentation(world: World) -> None:
    storage = world.settings.storage
    environment = {
        **os.environ,
        "KAFKA_BROKERS": str(world.settings.kafka.bootstrap_servers),
        "NAMESPACE": world.names.prefix,
        "S3_ENDPOINT": str(storage.endpoint),
        "S3_ACCESS_KEY": str(storage.access_key),
        "S3_SECRET_KEY": str(storage.secret_key),
        "S3_BUCKET": storage.bucket,
    }
    before = await world.claim_keys()
    body = {"model": MODEL_NAME, "messages": USER, "metadata": {"pad": "x" * 1_500_000}, "tools": [], **MUCH}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(LARGE_PROGRAM)],
        input=json.dumps(body),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["status"], len(result["choices"])) == ("completed", 8)
    assert [len(tokens) for tokens in choice_tokens(result)] == [300] * 8
    assert len(result["choices"][0]["logprobs"][0]["top"]) == 20
    assert len(done.stdout) > 1_000_000
    assert len(result["prompt_token_ids"]) == result["usage"]["prompt_tokens"]
    # One object of the request, one of its result.
    assert len(await world.claim_keys() - before) == 2


async def test_the_record_of_a_large_result_is_small_and_says_all_but_the_answer(world: World) -> None:
    request_id = fresh_id()
    await world.produce(request_id, messages=USER, **MUCH)
    result = (await world.answer(request_id)).result
    assert result.keys() >= {"status", "usage", "timings", "claim", "sampling", "hashes"}
    assert not result.keys() & {"choices", "messages", "prompt_token_ids"}
    assert result["usage"]["completion_tokens"] == 2_400
    assert len(json.dumps(result)) < 10_000
    content = json.loads(await world.objects.get(result["claim"]["object"]))
    assert len(content["choices"]) == 8


async def test_our_client_shows_nothing_of_claims(world: World) -> None:
    request_id = fresh_id()
    stream = world.client.stream("hi", request_id=request_id, metadata=PAD, **MUCH)
    texts, tokens = [""] * 8, [list[int]() for _ in range(8)]
    async with stream:
        async for delta in stream:
            texts[delta.choice] += delta.text
            tokens[delta.choice] += delta.token_ids
    assert stream.result is not None
    assert stream.result.claim is None
    assert [choice.content for choice in stream.result.choices] == texts
    assert [choice.token_ids for choice in stream.result.choices] == tokens
    again = await world.client.tail(request_id).read()
    assert again == stream.result
    # Asked again under the same id, the answer is the one there was.
    repeated = await world.client.complete("hi", request_id=request_id, metadata=PAD, **MUCH)
    assert repeated == stream.result


@pytest.mark.parametrize("num_bytes", [1_200_000, 20_000_000])
async def test_a_prompt_that_fits_no_context_is_refused_in_words_and_holds_up_nobody(
    world: World, num_bytes: int
) -> None:
    refused = asyncio.create_task(world.client.complete("word " * (num_bytes // 5), max_tokens=4))
    answered = [await world.client.complete("hi", max_tokens=4) for _ in range(5)]
    assert [result.status for result in answered] == ["completed"] * 5
    with pytest.raises(RequestFailed) as raised:
        await refused
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "messages")
    assert "tokens" in raised.value.message


async def test_turns_of_a_session_build_on_claimed_requests_and_results(world: World) -> None:
    session, ids = fresh_id(), [fresh_id() for _ in range(4)]
    # All at once: the second to fourth are parked, two of them with claims.
    bodies = [
        {**SHORT, "metadata": PAD},
        {"messages": USER, **MUCH, "n": 4},
        {**SHORT, "metadata": PAD, "of_tomorrow": 1},
        SHORT,
    ]
    for request_id, body in zip(ids, bodies, strict=True):
        await world.produce(request_id, session=session, **body)
    results = [(await world.answer(request_id)).result for request_id in ids]
    assert [result["status"] for result in results] == ["completed"] * 4
    assert [result["turn"] for result in results] == [1, 2, 3, 4]
    assert ["claim" in result for result in results] == [False, True, False, False]
    content = json.loads(await world.objects.get(results[1]["claim"]["object"]))
    turns = (await world.turns_of(session))[:3]
    assert turns[1].token_ids[-300:] == content["choices"][0]["token_ids"]
    assert [message.text for message in turns[1].messages] == ["hi", content["choices"][0]["message"]["content"]]
    history = [token for turn in turns for token in turn.token_ids]
    assert results[3]["prompt_token_ids"][: results[3]["num_base_tokens"]] == history


@pytest.mark.parametrize("fault", ["missing", "damaged"])
async def test_an_object_that_is_not_what_the_record_says_ends_the_request(world: World, fault: str) -> None:
    claim = await world.put({"messages": USER, "note": fresh_id()})
    if fault == "missing":
        await world.objects.delete(claim.object)
    else:
        await world.objects.put(claim.object, b'{"messages": [{"role": "user", "content": "other"}]}')
    request_id = fresh_id()
    await world.produce(request_id, kind="chat", claim=msgspec.to_builtins(claim))
    result = (await world.answer(request_id)).result
    assert (result["status"], result["error"]["code"]) == ("failed", f"claim_{fault}")


async def test_what_a_tenant_has_put_is_not_read_by_another(world: World) -> None:
    claim = await world.put({"messages": USER}, tenant="acme")
    request_id = fresh_id()
    await world.produce(request_id, kind="chat", claim=msgspec.to_builtins(claim))
    assert (await world.answer(request_id)).result["error"]["param"] == "claim.object"


async def test_while_storage_is_away_only_those_wait_who_need_it(world: World) -> None:
    session, ids = fresh_id(), {name: fresh_id() for name in ("large", "behind", "late", "result", "small")}
    world.door.shut()
    await world.produce(ids["large"], session=session, **SHORT, metadata=PAD)
    await world.produce(ids["behind"], session=session, **SHORT)
    await world.produce(ids["late"], **SHORT, metadata=PAD, ttl_s=1.0)
    await world.produce(ids["result"], messages=USER, **MUCH | {"n": 4})
    for _ in range(3):
        assert (await world.client.complete("hi", max_tokens=4)).status == "completed"
    assert (await world.answer(ids["late"])).result["status"] == "expired"
    # Its answer is streamed; only its result needs storage.
    assert (await asyncio.to_thread(world.plain.first_delta, ids["result"]))["request_id"] == ids["result"]
    world.door.open()
    results = {name: (await world.answer(ids[name])).result for name in ("large", "behind", "result")}
    assert {name: result["status"] for name, result in results.items()} == dict.fromkeys(results, "completed")
    assert (results["large"]["turn"], results["behind"]["turn"]) == (1, 2)
    assert "claim" in results["result"]


async def test_a_request_just_over_the_limit_and_one_just_below_it_are_both_answered(world: World) -> None:
    for num_bytes in (MAX_INLINE_BYTES - 2_000, MAX_INLINE_BYTES + 2_000, 990_000):
        request_id = fresh_id()
        await world.produce(request_id, **SHORT, metadata={"pad": "x" * num_bytes})
        assert (await world.answer(request_id)).result["status"] == "completed"
