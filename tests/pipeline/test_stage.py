"""Whole turns through context, tokenization and sampling, with a real child process and objects in memory."""

from typing import Any

import pytest

from pipeline.history import SessionHistory
from pipeline.sampling import seed_of
from pipeline.stage import Stage
from pipeline.tokenize import PromptPool
from pipeline.turn_claims import TurnClaims
from runtime.claims import ClaimStore
from schemas.batches import Refusal, Sequence
from schemas.envelope import ModelHashes
from schemas.names import Names
from schemas.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Message
from schemas.settings import ModelSettings, PipelineSettings, Settings
from schemas.turns import BaseTurn, Turn
from tests.pipeline.builders import chat, completion, envelope, session_turn, turn
from tests.pipeline.conftest import HANG
from tests.pipeline.test_history import Storage


def no_claims(pool: PromptPool) -> TurnClaims:
    """What follows claims, for turns that have none."""
    return TurnClaims(ClaimStore(Storage({})), Names(), pool)


def stage_over(
    pool: PromptPool, objects: dict[str, bytes] | None = None, *, context_length: int | None = None
) -> Stage:
    settings = Settings(
        models={"tiny": ModelSettings(path="tiny.gguf", context_length=context_length)},
        pipeline=PipelineSettings(default_max_tokens=20),
    )
    return Stage(settings, pool, SessionHistory(Storage(objects or {}), max_turns=10), no_claims(pool))


async def sequence_of(stage: Stage, given: Turn) -> Sequence:
    member = await stage.member(given, "interactive")
    assert isinstance(member, Sequence), member
    return member


async def refusal_of(stage: Stage, given: Turn) -> Refusal:
    member = await stage.member(given, "interactive")
    assert isinstance(member, Refusal), member
    return member


def tiny_chat(content: str = "hi", **fields: Any) -> ChatRequest:
    return chat(content, model="tiny", **fields)


async def test_a_chat_becomes_a_sequence_with_all_that_a_worker_needs(pool: PromptPool) -> None:
    given = turn(tiny_chat(max_tokens=5, temperature=0.0), "r-7")
    sequence = await sequence_of(stage_over(pool), given)
    facts = await pool.facts("tiny")
    assert (sequence.envelope, sequence.model, sequence.hashes) == (given.envelope, "tiny", facts.hashes)
    assert sequence.prompt_token_ids[0] == 256
    assert sequence.prompt_token_ids[-1] == 257
    assert (sequence.sampling.max_tokens, sequence.sampling.temperature) == (5, 0.0)
    assert sequence.sampling.seed == seed_of("r-7")
    assert (sequence.chat, sequence.num_base_tokens, sequence.parent, sequence.messages) == (True, 0, None, [])


async def test_a_turn_of_a_session_follows_the_exact_ids_of_the_turns_before_and_carries_its_own_messages(
    pool: PromptPool,
) -> None:
    hashes = (await pool.facts("tiny")).hashes
    objects = {
        "t1": session_turn(1, [256, 5, 257], hashes=hashes),
        "t2": session_turn(2, [256, 6, 257], hashes=hashes, parent="t1"),
    }
    given = turn(tiny_chat(), session="s-1", base=BaseTurn(turn=2, object="t2"))
    sequence = await sequence_of(stage_over(pool, objects), given)
    assert sequence.prompt_token_ids[:6] == [256, 5, 257, 256, 6, 257]
    assert len(sequence.prompt_token_ids) > 6
    assert (sequence.num_base_tokens, sequence.parent, sequence.envelope.turn) == (6, "t2", 3)
    assert sequence.messages == [Message(role="user", content="hi")]


async def test_the_first_turn_of_a_session_is_number_one(pool: PromptPool) -> None:
    sequence = await sequence_of(stage_over(pool), turn(tiny_chat(), session="s-1"))
    assert sequence.envelope.turn == 1
    assert sequence.messages == [Message(role="user", content="hi")]


async def test_token_ids_of_the_client_are_the_prompt(pool: PromptPool) -> None:
    sequence = await sequence_of(stage_over(pool), turn(completion([1, 2, 3], model="tiny")))
    assert (sequence.prompt_token_ids, sequence.chat) == ([1, 2, 3], False)


async def test_an_answer_without_a_limit_gets_the_default_or_what_fits(pool: PromptPool) -> None:
    stage = stage_over(pool)
    short = await sequence_of(stage, turn(completion([1], model="tiny")))
    long = await sequence_of(stage, turn(completion([1] * 120, model="tiny")))
    assert (short.sampling.max_tokens, long.sampling.max_tokens) == (20, 8)


async def test_settings_may_shorten_the_context_of_a_model_but_not_lengthen_it(pool: PromptPool) -> None:
    for context_length, fits in ((10, 9), (10**6, 127)):
        stage = stage_over(pool, context_length=context_length)
        sequence = await sequence_of(stage, turn(completion([1] * fits, model="tiny")))
        assert sequence.sampling.max_tokens == 1
        refused = await refusal_of(stage, turn(completion([1] * (fits + 1), model="tiny")))
        assert refused.error.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("request_", "code", "param"),
    [
        (chat(model="gpt-9"), "model_not_found", "model"),
        (tiny_chat("x" * 1000), "context_length_exceeded", "messages"),
        (tiny_chat(max_tokens=127), "context_length_exceeded", "messages"),
        (completion("x" * 1000, model="tiny"), "context_length_exceeded", "prompt"),
        (completion([], model="tiny"), "invalid_value", "prompt"),
        (completion("", model="tiny"), "invalid_value", "prompt"),
        (completion([261], model="tiny"), "invalid_value", "prompt"),
        (tiny_chat(stop=""), "invalid_value", "stop"),
        (EmbeddingRequest(model="tiny", input="x"), "invalid_value", "input"),
        (tiny_chat(HANG), "prompt_fault", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_be_answered_becomes_a_refusal_that_names_the_fault(
    pool: PromptPool, request_: ChatRequest | CompletionRequest, code: str, param: str | None
) -> None:
    given = Turn(envelope=envelope(), request=request_)
    refused = await refusal_of(stage_over(pool), given)
    assert (refused.error.code, refused.error.param) == (code, param)
    assert (refused.envelope, refused.model, refused.stage) == (given.envelope, request_.model, "pipeline")


async def test_an_unknown_model_is_told_which_ones_are_served(pool: PromptPool) -> None:
    refused = await refusal_of(stage_over(pool), turn(chat(model="gpt-9")))
    assert "gpt-9" in refused.error.message
    assert "tiny" in refused.error.message


async def test_a_session_whose_state_is_gone_or_of_another_tokenizer_is_refused(pool: PromptPool) -> None:
    other = ModelHashes(model="m", tokenizer="other", template="c")
    given = turn(tiny_chat(), session="s-1", base=BaseTurn(turn=1, object="t1"))
    for objects in ({}, {"t1": session_turn(1, [1], hashes=other)}):
        assert (await refusal_of(stage_over(pool, objects), given)).error.code == "session_unavailable"


async def test_a_fault_of_our_own_becomes_a_refusal_without_its_details(pool: PromptPool) -> None:
    class Broken(Storage):
        async def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
            raise ZeroDivisionError("secret detail")

    settings = Settings(models={"tiny": ModelSettings(path="tiny.gguf")})
    stage = Stage(settings, pool, SessionHistory(Broken({}), max_turns=10), no_claims(pool))
    refused = await refusal_of(stage, turn(tiny_chat(), session="s-1", base=BaseTurn(turn=1, object="t1")))
    assert (refused.error.code, refused.error.type) == ("internal_error", "server_error")
    assert "secret" not in refused.error.message


async def test_object_storage_that_is_away_is_waited_for_and_not_refused(pool: PromptPool) -> None:
    hashes = (await pool.facts("tiny")).hashes
    storage = Storage({"t1": session_turn(1, [256, 5, 257], hashes=hashes)})
    storage.outages = 2

    async def no_sleep(_: float) -> None:
        pass

    settings = Settings(models={"tiny": ModelSettings(path="tiny.gguf")})
    stage = Stage(settings, pool, SessionHistory(storage, max_turns=10, sleep=no_sleep), no_claims(pool))
    sequence = await sequence_of(stage, turn(tiny_chat(), session="s-1", base=BaseTurn(turn=1, object="t1")))
    assert sequence.num_base_tokens == 3
    assert storage.reads == ["t1"] * 3
