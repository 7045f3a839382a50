"""What the prompt of a turn is made of, and how many tokens the answer may have: decided here, built in a pool."""

import msgspec

from pipeline.structured import AskedStructure, asked_structure
from schemas.envelope import ModelHashes
from schemas.errors import ContextTooLong, InvalidValue
from schemas.requests import ChatRequest, CompletionRequest, Message
from schemas.turns import Turn


class ModelFacts(msgspec.Struct, kw_only=True, frozen=True):
    """What the stages must know of a model to plan: sizes in tokens, digests as they travel."""

    context_length: int
    vocab_size: int
    hashes: ModelHashes


class ChatPrompt(msgspec.Struct, kw_only=True, frozen=True, array_like=True, tag="chat"):
    """To be built by the chat template: `messages` follow `history`, the exact ids of the session's earlier turns.

    `now_ms` is the request's time (milliseconds since the epoch), for templates that write the date. `asked` is what
    the answer must be, to be compiled on the way: whether it can be enforced is known before it runs.
    """

    model: str
    messages: list[Message]
    history: list[int]
    max_prompt_tokens: int
    now_ms: int
    asked: AskedStructure | None = None


class TextPrompt(msgspec.Struct, kw_only=True, frozen=True, array_like=True, tag="text"):
    """To be built by the tokenizer alone: `text` follows `history`."""

    model: str
    text: str
    history: list[int]
    max_prompt_tokens: int
    asked: AskedStructure | None = None


class TokenPrompt(msgspec.Struct, kw_only=True, frozen=True, array_like=True, tag="tokens"):
    """Built already, but the structure of the answer is to be compiled."""

    model: str
    token_ids: list[int]
    asked: AskedStructure


class GivenPrompt(msgspec.Struct, kw_only=True, frozen=True):
    """Built already: the client sent token ids."""

    token_ids: list[int]


PromptJob = ChatPrompt | TextPrompt | TokenPrompt


def generation_request(turn: Turn) -> ChatRequest | CompletionRequest:
    """The request of a turn, if it is one that generates text.

    Raises:
        InvalidValue: it is another kind; the gate should have refused it.
    """
    if isinstance(turn.request, ChatRequest | CompletionRequest):
        return turn.request
    raise InvalidValue("embeddings are not served; send a chat or a completion", param="input")


def assemble(turn: Turn, history: list[int], facts: ModelFacts) -> PromptJob | GivenPrompt:
    """What makes the prompt of a turn after `history`, the token ids of its session's earlier turns.

    Raises:
        InvalidValue: the client's own token ids are none, or are not in the vocabulary; or what it says of the answer's
            structure contradicts itself.
        RequestTooLarge: that structure is too large.
    """
    request = generation_request(turn)
    asked = asked_structure(request)
    # One token of the context is for the answer.
    limit = facts.context_length - 1
    if isinstance(request, ChatRequest):
        return ChatPrompt(
            model=request.model,
            messages=request.messages,
            history=history,
            max_prompt_tokens=limit,
            now_ms=turn.envelope.accepted_at_ms,
            asked=asked,
        )
    if isinstance(request.prompt, str):
        text = request.prompt
        return TextPrompt(model=request.model, text=text, history=history, max_prompt_tokens=limit, asked=asked)
    token_ids = history + _in_vocabulary(request.prompt, facts.vocab_size)
    if asked is not None:
        return TokenPrompt(model=request.model, token_ids=token_ids, asked=asked)
    return GivenPrompt(token_ids=token_ids)


def answer_tokens(
    request: ChatRequest | CompletionRequest, *, num_prompt_tokens: int, default: int, context_length: int
) -> int:
    """How many tokens the answer may have: what the request says, else `default` or what still fits.

    Raises:
        InvalidValue: the prompt is empty.
        ContextTooLong: prompt and answer do not fit the context; the message has the numbers.
    """
    where = "messages" if isinstance(request, ChatRequest) else "prompt"
    if num_prompt_tokens == 0:
        raise InvalidValue("the prompt is empty: there is nothing to go on from", param=where)
    asked = request.max_completion_tokens if isinstance(request, ChatRequest) else None
    asked = request.max_tokens if asked is None else asked
    room = context_length - num_prompt_tokens
    if asked is None and room >= 1:
        return min(default, room)
    if asked is not None and asked <= room:
        return asked
    raise ContextTooLong(
        f"the model's context is {context_length} tokens; the prompt has {num_prompt_tokens} and the answer may have "
        f"{asked or 1}, together {num_prompt_tokens + (asked or 1)}: shorten the prompt"
        + (" or lower `max_tokens`" if asked and room >= 1 else ""),
        param=where,
    )


def _in_vocabulary(token_ids: list[int], vocab_size: int) -> list[int]:
    outside = next((i for i in token_ids if i >= vocab_size), None)
    if outside is not None:
        raise InvalidValue(f"token id {outside} is not in the vocabulary of {vocab_size} tokens", param="prompt")
    return token_ids
