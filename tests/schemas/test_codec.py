"""Decoding ends in a record or in an error that names the place, whatever the bytes are."""

import contextlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import codec
from schemas.errors import InvalidValue, MalformedRecord, RequestError
from schemas.requests import ChatRequest, CompletionRequest, EmbeddingRequest
from schemas.tokens import ChunkChoice, ChunkMessage, Takeover, TokenDelta, Usage

CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]%s}'

ALL_CODECS = [
    value for name, value in sorted(vars(codec).items()) if isinstance(value, codec.Codec) and not name.startswith("_")
]


def chat_with(fields: str) -> bytes:
    return CHAT % (", " + fields).encode()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (CHAT % b"", ChatRequest),
        (b'{"model": "m", "prompt": "once"}', CompletionRequest),
        (b'{"model": "m", "prompt": [1, 2, 3]}', CompletionRequest),
        (b'{"model": "m", "input": ["a", "b"]}', EmbeddingRequest),
        (b'{"kind": "chat", "model": "m", "messages": [{"role": "user", "content": "x"}], "prompt": "y"}', ChatRequest),
    ],
)
def test_the_kind_of_a_request_follows_from_its_body(body: bytes, kind: type) -> None:
    assert isinstance(codec.decode_request(body).request, kind)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="tombstone"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe{", id="not UTF-8"),
        pytest.param(b"{", id="cut off"),
        pytest.param(b"[1]", id="array"),
        pytest.param(b"null", id="null"),
        pytest.param(b'"text"', id="string"),
        pytest.param(b"[" * 100_000, id="nested too deeply"),
        pytest.param(b'{"a": 1e999}', id="number out of range"),
        pytest.param(b'{"model": "m", "prompt": "\\ud800"}', id="lone surrogate"),
        pytest.param(b'{"a": NaN}', id="NaN"),
    ],
)
def test_bytes_that_are_no_json_object_are_malformed(value: bytes | None) -> None:
    with pytest.raises(MalformedRecord):
        codec.decode_request(value)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{}", None),
        (b'{"kind": "poem", "model": "m"}', "kind"),
        (b'{"kind": 1, "model": "m"}', "kind"),
        (b'{"model": "m", "messages": []}', "messages"),
        (b'{"model": 1, "prompt": "x"}', "model"),
        (b'{"model": "m", "messages": [{"role": "wizard", "content": "x"}]}', "messages[0].role"),
        (b'{"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', None),
        (chat_with('"temperature": 3'), "temperature"),
        (chat_with('"temperature": "hot"'), "temperature"),
        (chat_with('"max_tokens": 0'), "max_tokens"),
        (chat_with('"n": 1.5'), "n"),
        (chat_with('"seed": -1'), "seed"),
        (chat_with('"id": "a/b"'), "id"),
        (chat_with('"id": "a\\n"'), "id"),
        (chat_with('"session": ""'), "session"),
        (chat_with('"tenant": ".."'), "tenant"),
        (chat_with('"class": "first"'), "class"),
        (chat_with('"ttl_s": 0'), "ttl_s"),
    ],
)
def test_a_wrong_value_is_named_by_its_place(body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidValue) as caught:
        codec.decode_request(body)
    if param is not None:
        assert caught.value.param == param
    assert caught.value.body.type == "invalid_request_error"


@pytest.mark.parametrize("field", ["id", "session", "tenant"])
def test_an_identifier_that_is_none_is_refused_in_words(field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        codec.decode_request(chat_with(f'"{field}": "a b"'))
    assert "letters, digits and ._:@-" in caught.value.message
    assert "regex" not in caught.value.message


def test_a_missing_model_is_named() -> None:
    with pytest.raises(InvalidValue, match="model"):
        codec.decode_request(b'{"prompt": "x"}')


def test_unknown_fields_are_kept() -> None:
    decoded = codec.decode_request(chat_with('"x_trace": {"a": [1]}, "class": "bulk"'))
    assert decoded.unknown_fields == {"x_trace": {"a": [1]}}
    assert decoded.request.priority_class == "bulk"


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_request_or_in_a_request_error(value: bytes) -> None:
    with contextlib.suppress(RequestError):  # anything else that is raised fails the test
        codec.decode_request(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
request_fields = st.sampled_from(
    sorted({field.encode_name for kind in (ChatRequest, CompletionRequest) for field in msgspec.structs.fields(kind)})
)


@given(st.dictionaries(request_fields | st.text(max_size=8), json_values, max_size=6))
def test_any_json_object_ends_in_a_request_or_in_a_request_error(body: dict[str, object]) -> None:
    try:
        value = msgspec.json.encode(body)
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError):
        return  # not encodable: a lone surrogate, or an integer beyond 64 bits
    with contextlib.suppress(RequestError):  # anything else that is raised fails the test
        codec.decode_request(value)


@pytest.mark.parametrize("record_codec", ALL_CODECS)
@given(value=st.none() | st.binary(max_size=100))
def test_any_bytes_on_any_topic_end_in_a_record_or_in_one_error(
    record_codec: "codec.Codec[object]", value: bytes | None
) -> None:
    with contextlib.suppress(MalformedRecord):  # anything else that is raised fails the test
        record_codec.decode(value)


def test_a_journal_holds_deltas_and_marks_apart() -> None:
    delta = TokenDelta(
        id="chatcmpl-r",
        object="chat.completion.chunk",
        created=1,
        model="m",
        choices=[ChunkChoice(index=0, delta=ChunkMessage(content="hi"))],
        request_id="r",
        index=0,
        epoch=7,
        source="headrace.batches.m-0",
        token_ids=[1, 2],
    )
    mark = Takeover(source="headrace.batches.m-0", worker="w", committed_offset=3)
    assert [codec.JOURNAL.decode(codec.JOURNAL.encode(record)) for record in (delta, mark)] == [delta, mark]
    assert delta.text == "hi"


def test_a_delta_is_an_openai_chunk_for_plain_readers() -> None:
    delta = TokenDelta(
        id="chatcmpl-r",
        object="chat.completion.chunk",
        created=1,
        model="m",
        choices=[ChunkChoice(index=0, delta=ChunkMessage(role="assistant", content="hi"))],
        request_id="r",
        index=0,
        epoch=7,
        source="s-0",
        token_ids=[1],
    )
    plain = msgspec.json.decode(codec.JOURNAL.encode(delta))
    assert plain["object"] == "chat.completion.chunk"
    assert plain["choices"][0]["delta"] == {"role": "assistant", "content": "hi"}
    assert plain["choices"][0]["finish_reason"] is None


def test_usage_says_zeros_too_as_openai_does() -> None:
    """A plain client reads `usage["completion_tokens"]`, also of a request that was cancelled before its first."""
    encoded = json.loads(msgspec.json.encode(Usage(prompt_tokens=3, total_tokens=3)))
    assert (encoded["prompt_tokens"], encoded["completion_tokens"], encoded["total_tokens"]) == (3, 0, 3)
