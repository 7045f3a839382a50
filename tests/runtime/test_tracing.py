"""traceparent: kept where it is valid, made where it is not."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.tracing import traceparent_of

VALID = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
FORM = re.compile(r"^00-[0-9a-f]{32}-[0-9a-f]{16}-01$")


def test_a_valid_one_is_kept() -> None:
    assert traceparent_of([("other", b"x"), ("traceparent", VALID.encode())]) == VALID


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\xfe",
        b"00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        b"00-4BF92F3577B34DA6A3CE929D0E0E4736",
        VALID.encode() + b"-" + b"x" * 10_000,
        None,
    ],
)
def test_one_that_is_not_valid_is_replaced(value: bytes | None) -> None:
    assert FORM.match(traceparent_of([("traceparent", value)]))


@given(st.binary(max_size=100))
def test_no_header_of_any_bytes_breaks_it(value: bytes) -> None:
    assert traceparent_of([("traceparent", value)])


def test_a_new_one_is_another_each_time() -> None:
    made = {traceparent_of([]) for _ in range(100)}
    assert len(made) == 100
    assert all(FORM.match(one) for one in made)
