"""A llama of two layers with random weights: everything that the real model exercises, in milliseconds."""

from collections.abc import Iterable
from typing import Any

import torch

from engine.config import EngineConfig
from engine.engine import Engine
from engine.executor import LocalExecutor
from engine.model_llama import LlamaModel
from engine.proposer import Proposer
from engine.structured.structures import Structures
from engine.types import GenerationOutput, GenerationRequest
from engine.weights import LayerWeights, ModelWeights
from kernels import ops
from kernels.paging import PagedCache
from models.kv_keys import BlockKeyChain
from models.spec import ModelSpec
from models.tokenizer import BYTE_OF_CODE_POINT, Tokenizer
from models.vocabulary import TokenKind, Vocabulary
from schemas.sampling import SamplingParams

EOS = 256
CONTEXT_LENGTH = 1024

SPEC = ModelSpec(
    name="tiny",
    architecture="llama",
    num_layers=2,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=272,
    context_length=CONTEXT_LENGTH,
    rope_theta=10_000.0,
    rms_norm_eps=1e-5,
    tie_embeddings=True,
    bos_token_id=None,
    eos_token_ids=(EOS,),
)


def tiny_tokenizer() -> Tokenizer:
    """One token for each byte, then control tokens."""
    stand_ins = {byte: chr(code) for code, byte in BYTE_OF_CODE_POINT.items()}
    controls = ["<|im_end|>", *(f"<|control_{number}|>" for number in range(SPEC.vocab_size - 257))]
    kinds: list[int] = [*[TokenKind.NORMAL] * 256, *[TokenKind.CONTROL] * len(controls)]
    return Tokenizer(
        Vocabulary(
            tokens=[stand_ins[byte] for byte in range(256)] + controls,
            kinds=kinds,
            merges=[],
            pre_tokenizer="smollm",
            bos_token_id=None,
            eos_token_ids=(EOS,),
            add_bos=False,
        )
    )


TOKENIZER = tiny_tokenizer()


def tiny_weights(dtype: torch.dtype, seed: int = 0) -> ModelWeights:
    """Random weights, large enough that different contexts give clearly different tokens."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        scaled: torch.Tensor = torch.randn(*shape, generator=generator) * shape[-1] ** -0.5
        return scaled

    hidden, attention = SPEC.hidden_size, SPEC.num_heads * SPEC.head_dim
    qkv = attention + 2 * SPEC.num_kv_heads * SPEC.head_dim
    layers = [
        LayerWeights(
            attention_norm=1 + 0.1 * random(hidden),
            qkv=ops.pack_linear((3 * random(qkv, hidden)).to(dtype)),
            attention_out=ops.pack_linear((2 * random(hidden, attention)).to(dtype)),
            mlp_norm=1 + 0.1 * random(hidden),
            gate_up=ops.pack_linear((2 * random(2 * SPEC.intermediate_size, hidden)).to(dtype)),
            down=ops.pack_linear((2 * random(hidden, SPEC.intermediate_size)).to(dtype)),
        )
        for _ in range(SPEC.num_layers)
    ]
    embedding = random(SPEC.vocab_size, hidden) * 8
    return ModelWeights(
        embedding=embedding.to(dtype),
        layers=layers,
        final_norm=1 + 0.1 * random(hidden),
        head=ops.pack_linear(3 * random(SPEC.vocab_size, hidden)),
    )


def tiny_executor(dtype: torch.dtype = torch.float32, *, num_blocks: int = 256, num_threads: int = 1) -> LocalExecutor:
    """An executor of the tiny model."""
    model = LlamaModel(SPEC, tiny_weights(dtype))
    cache = PagedCache(model.kv_shape, num_blocks, torch.device("cpu"))
    structures = Structures(TOKENIZER, num_threads=num_threads)
    executor = LocalExecutor(model, cache, structures, eos_token_ids=SPEC.eos_token_ids, num_threads=num_threads)
    executor.bind_thread()
    return executor


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def tiny_engine(
    dtype: torch.dtype = torch.float32,
    *,
    num_blocks: int = 256,
    max_running: int = 64,
    max_tokens_per_step: int = 64,
    prefix_cache: bool = True,
    num_threads: int = 1,
    clock: Clock | None = None,
    proposer: Proposer | None = None,
) -> Engine:
    """An engine of the tiny model."""
    config = EngineConfig(max_running=max_running, max_tokens_per_step=max_tokens_per_step, prefix_cache=prefix_cache)
    executor = tiny_executor(dtype, num_blocks=num_blocks, num_threads=num_threads)
    chain = tiny_chain if prefix_cache else None
    return Engine(SPEC, TOKENIZER, executor, config, make_chain=chain, clock=clock or Clock(), proposer=proposer)


def tiny_chain(tenant: str) -> BlockKeyChain:
    """Keys of the tiny model's blocks."""
    return BlockKeyChain(model_hash="tiny", kv_dtype="float32", layout="test", salt=tenant)


def tiny_request(request_id: str, prompt: str | list[int], *, max_tokens: int = 8, **fields: Any) -> GenerationRequest:
    """A request; sampling parameters and request fields by name. Without `temperature` it is greedy."""
    names = SamplingParams.__struct_fields__
    sampling: dict[str, Any] = {"seed": 1, "temperature": 0.0}
    sampling |= {name: fields.pop(name) for name in list(fields) if name in names}
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt.encode()) if isinstance(prompt, str) else prompt,
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),
        **fields,
    )


def run(engine: Engine, requests: Iterable[GenerationRequest] = ()) -> list[GenerationOutput]:
    """Add requests, and step until nothing is left."""
    for request in requests:
        engine.add(request)
    outputs = []
    while engine.has_work:
        outputs += engine.step()
        check_blocks(engine)
    return outputs


def check_blocks(engine: Engine) -> None:
    """No block is lost or counted twice."""
    stats = engine.stats()
    assert stats.kv_blocks_free + stats.kv_blocks_cached + stats.kv_blocks_used == stats.kv_blocks_total
    if not engine.has_work:
        assert stats.kv_blocks_used == 0
        assert stats.num_running == stats.num_waiting == 0


def tokens(outputs: Iterable[GenerationOutput], request_id: str, choice: int = 0) -> list[int]:
    """The token ids of one choice, with its indexes checked: no gap and no repeat."""
    token_ids: list[int] = []
    for output in outputs:
        if (output.request_id, output.choice) == (request_id, choice):
            assert output.index == len(token_ids)
            token_ids += output.token_ids
    return token_ids


def text(outputs: Iterable[GenerationOutput], request_id: str, choice: int = 0) -> str:
    """The text of one choice."""
    return "".join(output.text for output in outputs if (output.request_id, output.choice) == (request_id, choice))


def last(outputs: Iterable[GenerationOutput], request_id: str, choice: int = 0) -> GenerationOutput:
    """The one output of a choice that has a finish reason, which must be its last."""
    mine = [output for output in outputs if (output.request_id, output.choice) == (request_id, choice)]
    assert [output.finish_reason is None for output in mine] == [True] * (len(mine) - 1) + [False]
    return mine[-1]
