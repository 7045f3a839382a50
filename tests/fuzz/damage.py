"""Valid bytes made wrong: by their bytes, and by the values in them that no reader expects."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

# What JSON writers of all languages have put into records, and what nobody ought to.
TOKENS = [
    b"\xef\xbb\xbf",
    b"\xff",
    b"\xed\xa0\x80",
    b"\x00",
    b"\\ud800",
    b"\\u0000",
    b"NaN",
    b"1e400",
    b"-0",
    b"-0.0",
    b"64.0",
    b"9" * 400,
    b"9" * 5_000,
    b"[" * 2_000,
    b'{"a":' * 2_000,
    b'"id":"twice",',
    b"null",
    b"\xc1",
    b"\xdf\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\x91" * 2_000,
]


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    64.0,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
    2**31,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**63),
    "",
    "a",
    "\x00",
    "a\nb",
    "../../x",
    "a/b",
    "#",
    "é\u0301\U0001f469\u200d\U0001f469",
    "\ue000\uffff",
    "<|im_end|>",
    "{{ 7 * 7 }}",
    "x" * 301,
    "\x00" * 5_000,
    [],
    [[]],
    [0] * 50,
    [-1],
    {},
    {"": None},
    {"a": {"b": [1.0, "c"]}},
    _nested(300),
]
# JSON alone has numbers without an end.
JSON_VALUES = [*VALUES, 10**30, 10**400, "\ud800"]


@st.composite
def damaged_bytes(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """One of the samples, with a few of its bytes changed, left out, repeated, or joined by others."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from([0, 1, 1, 2, 8, 64])))
        data[start:end] = draw(
            st.sampled_from(TOKENS)
            | st.binary(max_size=4)
            | st.just(bytes(data[start:end]) * 2)
            | st.just(bytes(data[end : 2 * end - start]))
        )
    return bytes(data)


@st.composite
def altered(draw: st.DrawFn, sample: Any, values: Sequence[Any]) -> Any:
    """A decoded value in which some parts, at any depth, are others, absent, or doubled."""
    value = sample
    for _ in range(draw(st.integers(1, 3))):
        value = _altered_once(draw, value, values)
    return value


def _altered_once(draw: st.DrawFn, value: Any, values: Sequence[Any]) -> Any:
    is_container = isinstance(value, dict | list) and len(value) > 0
    if not is_container or draw(st.integers(0, 5)) == 0:
        return draw(st.sampled_from(values))
    if isinstance(value, dict):
        name = draw(st.sampled_from(list(value)))
        changed = {key: item for key, item in value.items() if key != name}
        way = draw(st.sampled_from(["alter", "alter", "alter", "drop", "rename"]))
        if way == "alter":
            changed[name] = _altered_once(draw, value[name], values)
        elif way == "rename":
            changed[draw(st.sampled_from(["", "x", "\x00", "schema", "id", str(name).upper()]))] = value[name]
        return changed
    place = draw(st.integers(0, len(value) - 1))
    part = (
        [_altered_once(draw, value[place], values)] if draw(st.booleans()) else [value[place]] * draw(st.integers(0, 3))
    )
    return [*value[:place], *part, *value[place + 1 :]]


def json_bytes(samples: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """JSON as it is, with other values in it, or broken."""
    decoded = [json.loads(sample) for sample in samples]
    changed = st.sampled_from(decoded).flatmap(lambda sample: altered(sample, JSON_VALUES))
    return st.sampled_from(samples) | damaged_bytes(samples) | changed.map(_dumped) | st.binary(max_size=60)


def msgpack_bytes(samples: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """The same for MessagePack."""
    decoded = [msgspec.msgpack.decode(sample) for sample in samples]
    changed = st.sampled_from(decoded).flatmap(lambda sample: altered(sample, VALUES))
    return (
        st.sampled_from(samples) | damaged_bytes(samples) | changed.map(msgspec.msgpack.encode) | st.binary(max_size=60)
    )


def _dumped(value: Any) -> bytes:
    # Python's own writer: it writes NaN, integers of any size and lone surrogates, as other careless ones do.
    return json.dumps(value).encode()
