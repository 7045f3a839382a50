"""Bytes that are no JSON: the error says what they seem to be, and what to do."""

import gzip
import json

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import decode_request
from schemas.errors import MalformedRecord
from schemas.foreign import advice_on

BODY = '{"model": "m", "prompt": "x"}'


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        pytest.param(BODY.encode("utf-8-sig"), "byte order mark: leave it out", id="BOM"),
        pytest.param(BODY.encode("utf-16"), "UTF-16", id="UTF-16 with a mark"),
        pytest.param(b"\xfe\xff" + BODY.encode("utf-16-be"), "UTF-16", id="big-endian with a mark"),
        pytest.param(BODY.encode("utf-16-le"), "UTF-16", id="UTF-16 little-endian"),
        pytest.param(BODY.encode("utf-16-be"), "UTF-16", id="UTF-16 big-endian"),
        pytest.param(BODY.encode("utf-32-be"), "UTF-32", id="UTF-32"),
        pytest.param(gzip.compress(BODY.encode()), "gzip's mark: send it as it is", id="gzip"),
        pytest.param(bytes(cramjam.zstd.compress(BODY.encode())), "zstd's mark", id="zstd"),
        pytest.param(bytes(cramjam.lz4.compress(BODY.encode())), "lz4's mark", id="lz4"),
        pytest.param(bytes(cramjam.snappy.compress(BODY.encode())), "snappy's mark", id="snappy"),
        pytest.param(b"\x00\x00\x00\x00\x07" + BODY.encode(), "schema registry's five bytes", id="schema registry"),
        pytest.param(b'{"prompt": "\\ud83d"}', r"half of a surrogate pair (\ud83d)", id="first half"),
        pytest.param(b'{"prompt": "a\\uDF0Ab"}', r"half of a surrogate pair (\uDF0A)", id="second half"),
        pytest.param(b'{"prompt": "\\ud83d\\ud83d"}', "surrogate", id="two first halves"),
        pytest.param(b'{"\\ud83d": 1}', "surrogate", id="in a name"),
    ],
)
def test_what_stands_in_the_way_is_named(value: bytes, advice: str) -> None:
    with pytest.raises(MalformedRecord) as caught:
        decode_request(value)
    assert advice in caught.value.message


@pytest.mark.parametrize("value", [b"{", b"\xff", b"hello", b'{"a": "\\\\ud83d"', b'{"a": "\\ud83d\\udf0a"', b""])
def test_of_what_is_not_known_nothing_is_said(value: bytes) -> None:
    assert advice_on(value) == ""


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_that_python_escapes_has_no_half_of_a_pair(text: str) -> None:
    assert "surrogate" not in advice_on(json.dumps({"a": text}).encode())


@given(st.binary(max_size=40))
def test_any_bytes_have_an_advice_or_none(value: bytes) -> None:
    assert isinstance(advice_on(value), str)
