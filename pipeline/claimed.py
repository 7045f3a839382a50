"""Requests whose heavy fields lie in the object of a claim: read in a child process, since they may be of any size."""

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from schemas.bodies import join_body
from schemas.claims import MAX_INLINE_BYTES
from schemas.errors import ContextTooLong, RequestTooLarge
from schemas.passing import passed_on
from schemas.requests import ChatRequest
from schemas.served import ServedRequest, served

if TYPE_CHECKING:
    # Loaded in the child only.
    from models.tokenizer import Tokenizer


class ClaimedBody(msgspec.Struct, kw_only=True, frozen=True, array_like=True, tag="body"):
    """To be put together: `inline` is the JSON of what its record holds, `content` that of its object."""

    model: str
    inline: bytes
    content: bytes
    max_prompt_tokens: int


def read_body(job: ClaimedBody, tokenizer: "Tokenizer") -> ServedRequest:
    """The whole request, without what no later stage looks at.

    One that cannot fit the context however it is tokenized, or is too large beside its prompt, ends here, so that it
    never reaches the event loop.

    Raises:
        InvalidValue: it is no valid request, or cannot be passed on.
        Unsupported: it asks for what is not served.
        ContextTooLong: its text is too long by itself.
        RequestTooLarge: the rest of it is.
    """
    request = served(join_body(msgspec.json.decode(job.inline), job.content).request)
    request = msgspec.structs.replace(request, metadata=None, user=None)
    fewest = _fewest_tokens(request, tokenizer)
    if fewest > job.max_prompt_tokens:
        raise ContextTooLong(
            f"the prompt has at least {fewest} tokens; {job.max_prompt_tokens} are allowed: shorten it",
            param="messages" if isinstance(request, ChatRequest) else "prompt",
        )
    passed_on(partial(msgspec.msgpack.encode, request), request, {})
    num_bytes = len(msgspec.msgpack.encode(_without_prompt(request)))
    if num_bytes > MAX_INLINE_BYTES:
        raise RequestTooLarge(
            f"beside its prompt and `metadata` the request takes {num_bytes} bytes; at most {MAX_INLINE_BYTES} are read"
        )
    return request


def _without_prompt(request: ServedRequest) -> ServedRequest:
    if isinstance(request, ChatRequest):
        return msgspec.structs.replace(request, messages=[])
    return msgspec.structs.replace(request, prompt="")


def _fewest_tokens(request: ServedRequest, tokenizer: "Tokenizer") -> int:
    if isinstance(request, ChatRequest):
        # A template writes a token for each message, if it is only that of the turn.
        return sum(max(1, tokenizer.fewest_tokens(message.text)) for message in request.messages)
    return tokenizer.fewest_tokens(request.prompt) if isinstance(request.prompt, str) else len(request.prompt)
