"""The numbers that define a model's shape: all that engine and pipeline need to plan with, read from the file once."""

import math

import msgspec

from models.gguf import GGUFFile
from models.vocabulary import Vocabulary
from schemas.errors import ModelFileError

SUPPORTED_ARCHITECTURES = ("llama",)

# The format's default where the file is silent.
DEFAULT_ROPE_THETA = 10_000.0


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a decoder-only transformer. Sizes count elements, `context_length` counts tokens."""

    name: str
    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    rope_theta: float
    rms_norm_eps: float
    tie_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of keys and values that one token takes in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype_bytes

    @classmethod
    def from_gguf(cls, name: str, file: GGUFFile) -> "ModelSpec":
        """Read the spec; ModelFileError, naming it, for anything that our model code does not compute."""
        architecture = file.require("general.architecture", str)
        if architecture not in SUPPORTED_ARCHITECTURES:
            supported = ", ".join(SUPPORTED_ARCHITECTURES)
            raise ModelFileError(
                f"{file.path}: architecture {architecture!r} is not supported; supported: {supported}."
            )
        vocabulary = Vocabulary.from_gguf(file)
        hidden_size = file.require(f"{architecture}.embedding_length", int)
        num_heads = file.require(f"{architecture}.attention.head_count", int)
        head_dim = file.get(f"{architecture}.attention.key_length", int)
        num_kv_heads = file.get(f"{architecture}.attention.head_count_kv", int)
        rope_theta = file.get(f"{architecture}.rope.freq_base", float)
        spec = cls(
            name=name,
            architecture=architecture,
            num_layers=file.require(f"{architecture}.block_count", int),
            hidden_size=hidden_size,
            intermediate_size=file.require(f"{architecture}.feed_forward_length", int),
            num_heads=num_heads,
            num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
            head_dim=hidden_size // max(num_heads, 1) if head_dim is None else head_dim,
            vocab_size=_num_embeddings(file),
            context_length=file.require(f"{architecture}.context_length", int),
            rope_theta=DEFAULT_ROPE_THETA if rope_theta is None else rope_theta,
            rms_norm_eps=file.require(f"{architecture}.attention.layer_norm_rms_epsilon", float),
            tie_embeddings="output.weight" not in file.tensors,
            bos_token_id=vocabulary.bos_token_id,
            eos_token_ids=vocabulary.eos_token_ids,
        )
        _check_numbers(spec, file)
        _check_vocabulary(spec, vocabulary, file)
        _check_variants(spec, file)
        return spec


def _num_embeddings(file: GGUFFile) -> int:
    """Rows of the embedding: some files pad it beyond the vocabulary, and logits have this width."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError(f"{file.path}: there is no two-dimensional tensor 'token_embd.weight'.")
    return embedding.shape[0]


def _check_numbers(spec: ModelSpec, file: GGUFFile) -> None:
    for field in msgspec.structs.fields(spec):
        value = getattr(spec, field.name)
        if field.type in (int, float) and not (value > 0 and math.isfinite(value)):
            raise ModelFileError(f"{file.path}: {field.name} is {value}, which cannot be right.")
    if spec.num_heads % spec.num_kv_heads:
        raise ModelFileError(f"{file.path}: {spec.num_heads} heads cannot share {spec.num_kv_heads} KV heads.")
    if spec.head_dim % 2:
        raise ModelFileError(f"{file.path}: head size {spec.head_dim} is odd, so it cannot be rotated.")


def _check_vocabulary(spec: ModelSpec, vocabulary: Vocabulary, file: GGUFFile) -> None:
    if len(vocabulary.tokens) > spec.vocab_size:
        num_tokens = len(vocabulary.tokens)
        raise ModelFileError(f"{file.path}: {num_tokens} tokens, but embeddings for only {spec.vocab_size}.")


def _check_variants(spec: ModelSpec, file: GGUFFile) -> None:
    """Refuse what would load and then compute something else than the model means."""
    key = spec.architecture
    scaling = file.get(f"{key}.rope.scaling.type", str)
    if scaling not in (None, "none") or "rope_freqs.weight" in file.tensors:
        raise ModelFileError(f"{file.path}: RoPE scaling ({scaling or 'rope_freqs.weight'}) is not supported yet.")
    for name in ("rope.dimension_count", "attention.value_length"):
        value = file.get(f"{key}.{name}", int)
        if value not in (None, spec.head_dim):
            raise ModelFileError(f"{file.path}: {name} {value} is not the head size {spec.head_dim}: unsupported.")
    for name in ("expert_count", "attention.sliding_window"):
        if file.get(f"{key}.{name}", int):
            raise ModelFileError(f"{file.path}: models with {name} are not supported yet.")
