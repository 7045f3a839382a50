from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from models.hashing import model_hash, template_hash, tokenizer_hash
from models.template import ChatTemplate
from models.tokenizer import Tokenizer
from schemas.errors import ModelFileError


def test_a_models_hash_is_blake3_of_the_whole_file(tmp_path: Path) -> None:
    """More than a chunk of every size at which the parallel reader divides its work."""
    content = bytes(range(256)) * 5000
    path = tmp_path / "weights"
    path.write_bytes(content)
    assert model_hash(path) == blake3(content).hexdigest()
    path.write_bytes(content[:-1] + b"\0")
    assert model_hash(path) != blake3(content).hexdigest()


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="nothing"):
        model_hash(tmp_path / "nothing")


def test_a_tokenizers_hash_changes_with_all_that_decides_ids(tokenizer: Tokenizer) -> None:
    base = tokenizer.vocabulary
    variants = [
        base,
        msgspec.structs.replace(base, tokens=[*base.tokens[:-1], "other"]),
        msgspec.structs.replace(base, kinds=[*base.kinds[:-1], 4]),
        msgspec.structs.replace(base, merges=[*base.merges[1:], base.merges[0]]),
        msgspec.structs.replace(base, pre_tokenizer="other"),
    ]
    assert len({tokenizer_hash(variant) for variant in variants}) == len(variants)


def test_a_templates_hash_is_that_of_its_text() -> None:
    assert template_hash(ChatTemplate("ü")) == blake3("ü".encode()).hexdigest()
