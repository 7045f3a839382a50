from pathlib import Path
from typing import Any

import pytest

from models.gguf import GGUFFile
from models.vocabulary import Vocabulary
from schemas.errors import ModelFileError
from tests.models.gguf_writer import METADATA, write_gguf


def vocabulary_of(tmp_path: Path, **changes: Any) -> Vocabulary:
    return Vocabulary.from_gguf(GGUFFile.open(write_gguf(tmp_path / "tiny.gguf", **changes)))


def test_special_tokens_are_the_control_tokens(tmp_path: Path) -> None:
    assert vocabulary_of(tmp_path).special_token_ids == {256, 257}


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("tokenizer.ggml.model", "llama", "tokenizer 'llama' is not supported"),
        ("tokenizer.ggml.model", None, "no 'tokenizer.ggml.model'"),
        ("tokenizer.ggml.pre", None, "no 'tokenizer.ggml.pre'"),
        ("tokenizer.ggml.tokens", [1, 2], "is a ndarray, not a list"),
        ("tokenizer.ggml.tokens", [*METADATA["tokenizer.ggml.tokens"][:-1], "!"], "appears twice"),
        ("tokenizer.ggml.tokens", [*METADATA["tokenizer.ggml.tokens"][:-1], ""], "empty token"),
        ("tokenizer.ggml.token_type", [1, 1], "261 tokens, but 2 token types"),
        ("tokenizer.ggml.merges", None, "no 'tokenizer.ggml.merges'"),
        ("tokenizer.ggml.eos_token_id", None, "no answer would ever end"),
        ("tokenizer.ggml.eos_token_id", 261, "[261] are outside"),
        ("tokenizer.ggml.bos_token_id", 999, "[999] are outside"),
    ],
)
def test_a_vocabulary_that_cannot_work_is_refused(tmp_path: Path, key: str, value: Any, reason: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        vocabulary_of(tmp_path, **{key: value})
    assert reason in caught.value.message
