"""From what a caller writes to the bytes of a request, checked here so that a mistake is an exception and no record."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import msgspec
import uuid6

from schemas.codec import decode_request
from schemas.envelope import PriorityClass
from schemas.errors import InvalidValue
from schemas.names import Lane
from schemas.requests import Message, Request

Messages = str | Sequence[Message | Mapping[str, Any]]


class RequestOptions(TypedDict, total=False):
    """What may be said of a request besides its messages, under OpenAI's names (vLLM's where OpenAI has none).

    `ttl_s` counts from acceptance by the broker; `priority_class` "bulk" takes the bulk lane.
    """

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: dict[str, float] | None
    n: int | None
    seed: int | None
    stop: str | list[str] | None
    stop_token_ids: list[int] | None
    min_tokens: int | None
    ignore_eos: bool | None
    response_format: dict[str, Any] | None
    structured_outputs: dict[str, Any] | None
    logprobs: bool | None
    top_logprobs: int | None
    user: str | None
    metadata: dict[str, Any] | None
    priority: int | None
    priority_class: PriorityClass | None
    ttl_s: float | None
    deadline_ms: int | None


class OutgoingRequest(NamedTuple):
    """A checked request as it goes to the broker. `key` decides its partition."""

    request_id: str
    key: bytes
    tenant: str
    lane: Lane
    value: bytes
    kind: str = "chat"


def new_request_id() -> str:
    """A UUIDv7 (RFC 9562): a look-up by id then knows where in time to look."""
    return str(uuid6.uuid7())


def encode_chat(
    messages: Messages, *, model: str, tenant: str, session: str | None, request_id: str, options: RequestOptions
) -> OutgoingRequest:
    """A chat request.

    Raises:
        InvalidValue: a message or an option has a wrong type or value; `param` names it.
    """
    fields = {
        "id": request_id,
        "session": session,
        "tenant": tenant,
        "model": model,
        "messages": [{"role": "user", "content": messages}] if isinstance(messages, str) else messages,
        **options,
    }
    fields["class"] = fields.pop("priority_class", None)
    value = _encode({"kind": "chat"} | {name: value for name, value in fields.items() if value is not None})
    decoded = decode_request(value)
    if decoded.unknown_fields:
        raise InvalidValue(f"unknown options: {', '.join(decoded.unknown_fields)}", param=min(decoded.unknown_fields))
    return OutgoingRequest(request_id, (session or request_id).encode(), tenant, _lane(decoded.request), value)


def _lane(request: Request) -> Lane:
    # Sessions have one lane only: two would put their turns out of order.
    return "interactive" if request.session else request.priority_class


def _encode(fields: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(fields)
    except (TypeError, UnicodeEncodeError, OverflowError, RecursionError) as error:
        raise InvalidValue(f"the request cannot be written as JSON: {error}") from error
