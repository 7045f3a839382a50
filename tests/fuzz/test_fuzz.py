"""Every reader of foreign bytes, with some of all that there may be. `make prove-fuzz` goes on where this ends."""

import pytest
from hypothesis import given, settings

from schemas import codec
from tests.fuzz import samples
from tests.fuzz.target import UNTIMED, Target
from tests.fuzz.targets import TARGETS

_EXAMPLES = 60


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_any_bytes_end_in_a_record_or_in_an_error_of_ours(target: Target) -> None:
    settings(UNTIMED, max_examples=_EXAMPLES)(given(target.inputs)(target.check))()


def test_every_codec_is_fuzzed() -> None:
    all_codecs = {id(value) for value in vars(codec).values() if isinstance(value, codec.Codec)}
    fuzzed = {id(found) for found, _ in [*samples.JSON_CODECS.values(), *samples.MSGPACK_CODECS.values()]}
    assert all_codecs == fuzzed
