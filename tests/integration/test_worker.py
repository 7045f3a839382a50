"""One engine worker on the real broker with a real, tiny model: what it says of each kind of request."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio

from headrace.local.background import BackgroundStack
from schemas.batches import Refusal
from schemas.envelope import ModelHashes
from schemas.errors import DeadlineExceeded, UnknownModel
from schemas.requests import Message
from schemas.settings import Settings
from schemas.tokens import Admitted, Ended, Takeover, TokenDelta
from tests.consumers.worker.live import Outside
from tests.consumers.worker.oracle import undisturbed
from tests.consumers.worker.processes import WorkerHere
from tests.consumers.worker.settings import worker_settings
from tests.consumers.worker.tiny_model import CONTEXT_LENGTH, MODEL_NAME, TinyModel

# One worker serves all tests of this file: each uses request ids of its own.
pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

LONG = 800


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return TinyModel.write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def settings(stack: BackgroundStack, tiny: TinyModel) -> Settings:
    return worker_settings(stack, f"t{uuid4().hex[:8]}", tiny)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def outside(settings: Settings) -> AsyncIterator[Outside]:
    async with Outside(settings) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(settings: Settings, outside: Outside) -> AsyncIterator[WorkerHere]:
    async with WorkerHere(settings) as running:
        yield running


@pytest.fixture
def name() -> str:
    """A request id that no other test uses."""
    return uuid4().hex[:8]


async def test_a_request_becomes_deltas_a_result_and_a_committed_offset(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str, settings: Settings
) -> None:
    request = tiny.member(name, messages=[Message(role="user", content="hi")], parent="object", num_base_tokens=1)
    place = outside.send(request)
    result = await outside.result(name)
    (choice,) = result.choices
    expected = (await asyncio.to_thread(undisturbed, settings, tiny, [request]))[name]
    assert outside.stream(name) == expected
    assert (choice.token_ids, choice.content) == (expected[0].token_ids, expected[0].text)
    assert (result.status, choice.finish_reason) == ("completed", "length")
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (3, 12)
    assert (result.prompt_token_ids, result.num_base_tokens, result.parent) == ([10, 20, 30], 1, "object")
    assert result.messages == request.messages
    assert result.timings is not None
    assert result.timings.total_ms is not None
    assert result.timings.ttft_ms is not None
    kinds = [type(record) for seen, record in outside.journal() if seen.key == name.encode()]
    assert kinds[0] is Admitted
    assert set(kinds[1:-1]) == {TokenDelta}
    assert kinds[-1] is Ended
    assert {one.partition for one in outside.seen if one.key == name.encode()} == {place.partition}
    first, last = outside.deltas(name)[0], outside.deltas(name)[-1]
    # How many tokens it has depends on how busy the machine is: that the first leaves at once is tested on the lane.
    assert first.index == 0
    assert first.token_ids
    assert (last.finish_reason, last.status) == ("length", "completed")
    assert last.usage == result.usage
    await outside.until_committed(place)


async def test_the_model_is_announced_and_every_partition_marked(
    worker: WorkerHere, outside: Outside, tiny: TinyModel
) -> None:
    await outside.taken_over(worker.name, outside.sources())
    marks = [(seen, record) for seen, record in outside.journal() if isinstance(record, Takeover)]
    assert {(record.source.rpartition("-")[2]) for seen, record in marks if seen.partition == 0} == {"0"}
    await outside.until(lambda: bool(outside.announcements()))
    (announced,) = outside.announcements()
    assert (announced.model, announced.hashes, announced.context_length) == (MODEL_NAME, tiny.hashes, CONTEXT_LENGTH)
    assert announced.num_kv_tokens > CONTEXT_LENGTH


async def test_members_end_out_of_order_and_only_the_contiguous_prefix_is_committed(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str
) -> None:
    slow, *fast = outside.ids_in(1, 5, prefix=name)
    first = outside.send(tiny.member(slow, sampling={"max_tokens": LONG}), tiny.member(fast[0]), tiny.member(fast[1]))
    second = outside.send(tiny.member(fast[2]), tiny.member(fast[3]))
    for request_id in fast:
        await outside.result(request_id)
    assert outside.results_of(slow) == []
    assert not await outside.is_committed(first)
    result = await outside.result(slow)
    assert result.choices[0].token_ids == outside.stream(slow)[0].token_ids
    assert len(result.choices[0].token_ids) == LONG
    await outside.until_committed(second)


async def test_choices_are_streams_of_their_own(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str, settings: Settings
) -> None:
    request = tiny.member(name, sampling={"num_choices": 3, "max_tokens": 40, "top_logprobs": 2})
    outside.send(request)
    result = await outside.result(name)
    stream = outside.stream(name)
    assert stream == (await asyncio.to_thread(undisturbed, settings, tiny, [request]))[name]
    assert [choice.token_ids for choice in result.choices] == [stream[index].token_ids for index in range(3)]
    assert len({tuple(choice.token_ids) for choice in result.choices}) == 3
    for choice in result.choices:
        assert choice.logprobs is not None
        assert [one.token_id for one in choice.logprobs] == choice.token_ids
    assert [delta.usage is not None for delta in outside.deltas(name)].count(True) == 1


async def test_a_completion_that_is_not_streamed_comes_in_one_delta(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str
) -> None:
    outside.send(tiny.member(name, chat=False, envelope={"stream": False}, sampling={"max_tokens": 60}), lane="bulk")
    result = await outside.result(name)
    (delta,) = outside.deltas(name)
    assert (delta.object, delta.id, len(delta.token_ids)) == ("text_completion", f"cmpl-{name}", 60)
    assert (result.object, result.choices[0].text, result.choices[0].message) == (
        "text_completion",
        delta.choices[0].text,
        None,
    )


@pytest.mark.parametrize("has_model", [False, True], ids=["of an unknown model", "of a known model"])
async def test_a_refusal_ends_as_failed_with_a_final_delta_before_its_result(
    worker: WorkerHere,
    outside: Outside,
    tiny: TinyModel,
    name: str,
    has_model: bool,
) -> None:
    error = UnknownModel("no worker serves 'x'; there is: tiny", param="model").body
    refused = Refusal(envelope=tiny.member(name).envelope, model="x", stage="pipeline", error=error)
    if has_model:
        outside.send(refused, tiny.member(f"{name}.2"))
        assert (await outside.result(f"{name}.2")).status == "completed"
    else:
        outside.send(refused, topic=outside.names.refusals())
    result = await outside.result(name)
    assert (result.status, result.error, result.choices) == ("failed", error, [])
    (delta,) = outside.deltas(name)
    assert (delta.finish_reason, delta.token_ids, delta.error, delta.status) == ("error", [], error, "failed")


async def test_a_refusal_for_a_deadline_that_passed_on_the_way_ends_as_expired(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str
) -> None:
    error = DeadlineExceeded("the deadline passed before the request was begun").body
    outside.send(Refusal(envelope=tiny.member(name).envelope, model="x", stage="pipeline", error=error))
    result = await outside.result(name)
    assert (result.status, result.error, result.choices) == ("expired", error, [])


async def test_a_record_that_is_no_batch_goes_to_the_dead_letters_whole_and_the_partition_goes_on(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str
) -> None:
    topic = outside.names.batches(MODEL_NAME)
    garbage: list[bytes | None] = [b"\xff\xfe{", b"", None, b'{"members": []}', b"x" * 900_000]
    places = [outside.send_raw(topic, value, key=b"k", partition=1) for value in garbage]
    (request_id,) = outside.ids_in(1, 1, prefix=name)
    last = outside.send(tiny.member(request_id))
    assert (await outside.result(request_id)).status == "completed"
    await outside.until(lambda: len(outside.dead_letters()) == len(garbage))
    for place, value in zip(places, garbage, strict=True):
        (letter,) = [one for one in outside.dead_letters() if one.offset == place.offset]
        assert (letter.topic, letter.partition, letter.stage, letter.key) == (topic, 1, "worker", b"k")
        assert letter.error.code == "malformed_record"
        assert (letter.value or b"") == (value if value and len(value) < 700_000 else b"")
    await outside.until_committed(last)


async def test_an_empty_batch_is_passed_over(worker: WorkerHere, outside: Outside) -> None:
    topic = outside.names.batches(MODEL_NAME)
    empty = msgspec.msgpack.encode({"schema": "batch/1", "members": []})
    await outside.until_committed(outside.send_raw(topic, empty, key=b"k", partition=0))


async def test_a_request_that_comes_too_late_expires_without_a_token(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str
) -> None:
    outside.send(tiny.member(name, envelope={"deadline_ms": int(time.time() * 1000) - 60_000}))
    result = await outside.result(name)
    assert (result.status, result.usage.completion_tokens) == ("expired", 0)
    assert result.error is not None
    assert result.error.code == "deadline_exceeded"
    assert outside.stream(name)[0].finish_reasons == ["cancelled"]


async def test_a_request_that_runs_too_long_expires_with_what_it_has_said(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str
) -> None:
    await outside.taken_over(worker.name, outside.sources())
    deadline_ms = int(time.time() * 1000) + 3_000
    outside.send(
        tiny.member(name, envelope={"deadline_ms": deadline_ms}, sampling={"max_tokens": 4_000, "num_choices": 2})
    )
    result = await outside.result(name)
    assert result.status == "expired"
    stream = outside.stream(name)
    assert 0 < result.usage.completion_tokens < 8_000
    assert [choice.token_ids for choice in result.choices] == [stream[0].token_ids, stream[1].token_ids]
    assert [choice.content for choice in result.choices] == [stream[0].text, stream[1].text]
    assert [choice.finish_reasons for choice in stream.values()] == [["cancelled"], ["cancelled"]]
    outside.send(tiny.member(f"{name}.2"))
    assert (await outside.result(f"{name}.2")).status == "completed"


async def test_the_first_record_of_an_id_wins_and_repeats_point_to_its_result(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str
) -> None:
    outside.send(tiny.member(name, sampling={"max_tokens": 300}), tiny.member(name))
    outside.send(tiny.member(name))
    result = await outside.result(name)
    await outside.until(lambda: len(outside.duplicates_of(name)) == 2)
    assert len(result.choices[0].token_ids) == 300
    last = outside.send(tiny.member(name))
    await outside.until(lambda: len(outside.duplicates_of(name)) == 3)
    results = [one for one in outside.of(outside.names.results) if one.key == name.encode()]
    (offset,) = [one.offset for one in results if b'"result/1"' in one.value]
    assert [one.result_offset for one in outside.duplicates_of(name)] == [None, None, offset]
    await outside.until_committed(last)
    assert len(outside.results_of(name)) == 1


async def test_tenants_may_use_the_same_id(worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str) -> None:
    outside.send(
        tiny.member(name, sampling={"seed": 1}), tiny.member(name, envelope={"tenant": "other"}, sampling={"seed": 2})
    )
    ours, theirs = await outside.result(name), await outside.result(name, "other")
    assert ours.choices[0].token_ids != theirs.choices[0].token_ids
    assert outside.stream(name)[0].token_ids == ours.choices[0].token_ids
    assert outside.stream(name, "other")[0].token_ids == theirs.choices[0].token_ids


async def test_token_ids_of_other_weights_are_not_run(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str
) -> None:
    outside.send(tiny.member(name, hashes=ModelHashes(model="old", tokenizer="old", template="old")))
    result = await outside.result(name)
    assert result.error is not None
    assert (result.status, result.error.code, result.usage.completion_tokens) == ("failed", "model_changed", 0)


@pytest.mark.parametrize(
    "changes",
    [{"prompt_token_ids": [1_000_000]}, {"prompt_token_ids": []}, {"sampling": {"max_tokens": CONTEXT_LENGTH}}],
    ids=["unknown token", "no prompt", "more than the context"],
)
async def test_what_the_engine_cannot_take_fails_alone(
    worker: WorkerHere, outside: Outside, tiny: TinyModel, name: str, changes: dict[str, Any]
) -> None:
    outside.send(tiny.member(name, **changes), tiny.member(f"{name}.2"))
    result = await outside.result(name)
    assert result.error is not None
    assert (result.status, result.error.type) == ("failed", "invalid_request_error")
    assert outside.stream(name)[0].finish_reasons == ["error"]
    assert (await outside.result(f"{name}.2")).status == "completed"


async def test_a_full_worker_takes_the_rest_when_it_has_room(
    stack: BackgroundStack, namespace: str, tiny: TinyModel
) -> None:
    settings = worker_settings(stack, namespace, tiny, max_in_flight=3)
    async with Outside(settings) as outside:
        names = [f"r{number}" for number in range(20)]
        for number, name in enumerate(names):
            outside.send(tiny.member(name, sampling={"max_tokens": 30}), lane="bulk" if number % 2 else "interactive")
        async with WorkerHere(settings):
            for name in names:
                assert (await outside.result(name)).status == "completed"
