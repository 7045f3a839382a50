import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.context import ChatPrompt, GivenPrompt, TextPrompt, answer_tokens, assemble, generation_request
from schemas.errors import ContextTooLong, InvalidValue
from schemas.requests import EmbeddingRequest
from schemas.turns import Turn
from tests.pipeline.builders import FACTS, chat, completion, envelope, turn


def test_a_chat_is_built_from_its_messages_after_the_history_at_the_time_of_the_request() -> None:
    request = chat("hi")
    job = assemble(turn(request, accepted_at_ms=123), [7, 8], FACTS)
    assert isinstance(job, ChatPrompt)
    assert (job.messages, job.history, job.now_ms) == (request.messages, [7, 8], 123)


def test_a_text_is_built_after_the_history() -> None:
    job = assemble(turn(completion("once upon")), [7, 8], FACTS)
    assert isinstance(job, TextPrompt)
    assert (job.text, job.history) == ("once upon", [7, 8])


def test_token_ids_of_the_client_follow_the_history_as_they_are() -> None:
    assert assemble(turn(completion([1, 2])), [7, 8], FACTS) == GivenPrompt(token_ids=[7, 8, 1, 2])


def test_the_prompt_leaves_at_least_one_token_of_the_context_for_the_answer() -> None:
    jobs = [assemble(turn(request), [], FACTS) for request in (chat(), completion())]
    assert [job.max_prompt_tokens for job in jobs if isinstance(job, ChatPrompt | TextPrompt)] == [99, 99]


@pytest.mark.parametrize("token_id", [1000, 2**40])
def test_a_token_id_outside_the_vocabulary_is_refused_by_name(token_id: int) -> None:
    with pytest.raises(InvalidValue, match=str(token_id)) as caught:
        assemble(turn(completion([1, token_id])), [], FACTS)
    assert caught.value.param == "prompt"


def test_an_embedding_that_slipped_through_is_refused() -> None:
    with pytest.raises(InvalidValue, match="embeddings"):
        generation_request(Turn(envelope=envelope(), request=EmbeddingRequest(model="m", input="x")))


@given(num_prompt=st.integers(1, 200), asked=st.none() | st.integers(1, 200), default=st.integers(1, 200))
def test_prompt_and_answer_never_exceed_the_context(num_prompt: int, asked: int | None, default: int) -> None:
    request = chat(max_tokens=asked)
    try:
        allowed = answer_tokens(request, num_prompt_tokens=num_prompt, default=default, context_length=100)
    except ContextTooLong:
        assert num_prompt + (asked or 1) > 100
    else:
        assert 1 <= allowed <= 100 - num_prompt
        assert allowed == (asked or min(default, 100 - num_prompt))


def test_a_context_that_is_too_long_is_told_in_numbers() -> None:
    with pytest.raises(ContextTooLong) as caught:
        answer_tokens(chat(max_tokens=20), num_prompt_tokens=90, default=5, context_length=100)
    assert all(number in caught.value.message for number in ("100", "90", "20", "110", "max_tokens"))
    assert caught.value.param == "messages"


def test_a_prompt_that_fills_the_context_is_not_told_to_lower_max_tokens() -> None:
    with pytest.raises(ContextTooLong) as caught:
        answer_tokens(completion(max_tokens=20), num_prompt_tokens=100, default=5, context_length=100)
    assert "max_tokens" not in caught.value.message
    assert caught.value.param == "prompt"


def test_max_completion_tokens_goes_before_the_older_max_tokens() -> None:
    request = chat(max_tokens=7, max_completion_tokens=3)
    assert answer_tokens(request, num_prompt_tokens=1, default=5, context_length=100) == 3


@pytest.mark.parametrize(("request_", "param"), [(chat(), "messages"), (completion(""), "prompt")])
def test_an_empty_prompt_is_refused(request_: object, param: str) -> None:
    with pytest.raises(InvalidValue, match="empty") as caught:
        answer_tokens(request_, num_prompt_tokens=0, default=5, context_length=100)  # type: ignore[arg-type]
    assert caught.value.param == param
