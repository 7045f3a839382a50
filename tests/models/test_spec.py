from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.catalog import LoadedModel
from models.gguf import GGUFFile
from models.spec import ModelSpec
from schemas.errors import ModelFileError
from tests.models.gguf_writer import EMBEDDING, write_gguf


def spec_of(tmp_path: Path, **changes: Any) -> ModelSpec:
    return ModelSpec.from_gguf("tiny", GGUFFile.open(write_gguf(tmp_path / "tiny.gguf", **changes)))


def test_the_default_model_has_its_published_shape(model: LoadedModel) -> None:
    """https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct, config.json."""
    spec = model.spec
    assert (spec.num_layers, spec.hidden_size, spec.intermediate_size) == (30, 576, 1536)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (9, 3, 64)
    assert (spec.vocab_size, spec.context_length, spec.rope_theta) == (49152, 8192, 100_000)
    assert spec.rms_norm_eps == pytest.approx(1e-5)
    assert spec.tie_embeddings
    assert spec.kv_bytes_per_token(2) == 23_040


def test_the_files_own_end_of_sequence_comes_first_and_ends_of_text_follow(model: LoadedModel) -> None:
    """transformers reads 1 (`<|im_start|>`) from this file, which would end every answer at the next turn only."""
    assert model.spec.eos_token_ids == (2, 0)
    assert model.spec.bos_token_id == 1


def test_further_ends_of_turn_in_the_metadata_are_used(tmp_path: Path) -> None:
    assert spec_of(tmp_path, tokenizer__ggml__eot_token_id=3, tokenizer__ggml__eom_token_id=4).eos_token_ids == (
        257,
        3,
        4,
    )


def test_a_file_without_optional_numbers_gets_the_formats_defaults(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path, llama__rope__freq_base=None, llama__attention__head_count_kv=None, tokenizer__ggml__bos_token_id=None
    )
    assert (spec.rope_theta, spec.num_kv_heads, spec.bos_token_id) == (10_000, 4, None)


def test_the_width_of_logits_is_that_of_the_embedding(tmp_path: Path) -> None:
    assert spec_of(tmp_path).vocab_size == EMBEDDING["token_embd.weight"].shape[0]


def test_an_own_output_matrix_means_untied_embeddings(tmp_path: Path) -> None:
    tensors = EMBEDDING | {"output.weight": EMBEDDING["token_embd.weight"]}
    assert spec_of(tmp_path).tie_embeddings
    assert not spec_of(tmp_path, tensors=tensors).tie_embeddings


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architecture": "mamba"}, "'mamba' is not supported; supported: llama"),
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
        ({"tensors": EMBEDDING | {"rope_freqs.weight": np.ones(8, dtype=np.float32)}}, "rope_freqs"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.attention.sliding_window": 64}, "sliding_window"),
        ({"llama.rope.dimension_count": 8}, "dimension_count 8"),
        ({"llama.attention.value_length": 32}, "value_length 32"),
        ({"llama.attention.head_count_kv": 3}, "cannot share 3"),
        ({"llama.attention.head_count": 0}, "num_heads is 0"),
        ({"llama.attention.key_length": 15}, "odd"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "rms_norm_eps is nan"),
        ({"llama.block_count": None}, "no 'llama.block_count'"),
        ({"llama.block_count": "two"}, "is a str"),
        ({"tensors": {"other": np.zeros(4, dtype=np.float32)}}, "token_embd.weight"),
        ({"tensors": {"token_embd.weight": np.zeros((8, 64), dtype=np.float32)}}, "embeddings for only 8"),
    ],
)
def test_what_our_model_code_does_not_compute_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelFileError) as caught:
        spec_of(tmp_path, **changes)
    assert reason in caught.value.message
