"""What a client puts on `requests`: the OpenAI body with the envelope's fields beside it, in one flat JSON object."""

from typing import Annotated, Any, Literal

import msgspec

from schemas.claims import ClaimCheck
from schemas.envelope import DEFAULT_TENANT, Identifier, PriorityClass
from schemas.sampling import MAX_CHOICES, MAX_STOP_STRINGS, MAX_TOP_LOGPROBS
from schemas.structured import ResponseFormat, StructuredOutputs

MAX_PRIORITY = 100

Role = Literal["system", "developer", "user", "assistant", "tool"]


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    """One text part of a message's content. Other kinds of parts are refused by name."""

    text: str


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One message of a conversation, as OpenAI defines it."""

    role: Role
    content: str | list[TextPart] | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content or [])


class RequestBase(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="kind"):
    """The envelope as the client writes it.

    `ttl_s` counts from acceptance by the broker; `deadline_ms` is absolute broker time; the earlier one holds. With
    `claim`, further fields of the body are members of a JSON object in object storage: any but these and `stream`.
    """

    id: Identifier | None = None
    session: Identifier | None = None
    tenant: Identifier = DEFAULT_TENANT
    priority_class: PriorityClass = msgspec.field(name="class", default="interactive")
    priority: Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    ttl_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    deadline_ms: Annotated[int, msgspec.Meta(gt=0)] | None = None
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    claim: ClaimCheck | None = None


class GenerationBase(RequestBase, kw_only=True, omit_defaults=True):
    """The fields that chat and text completions share, under OpenAI's names (vLLM's where OpenAI has none)."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | None = None
    presence_penalty: Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)] | None = None
    frequency_penalty: Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)] | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0.0, le=10.0)] | None = None
    logit_bias: dict[str, Annotated[float, msgspec.Meta(ge=-100.0, le=100.0)]] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: list[Annotated[int, msgspec.Meta(ge=0)]] | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    ignore_eos: bool = False
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool = True
    user: str | None = None
    metadata: dict[str, Any] | None = None


class ChatRequest(GenerationBase, kw_only=True, omit_defaults=True, tag="chat"):
    """OpenAI's /v1/chat/completions. In a session, `messages` are this turn's only: the log remembers the rest."""

    # (Like `prompt` and `input` below, absent only where it is in the object of a claim: `codec` sees to that.)
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)] = []
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None


class CompletionRequest(GenerationBase, kw_only=True, omit_defaults=True, tag="completion"):
    """OpenAI's /v1/completions: a text or token ids to go on from."""

    prompt: str | list[Annotated[int, msgspec.Meta(ge=0)]] = ""
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


class EmbeddingRequest(RequestBase, kw_only=True, omit_defaults=True, tag="embedding"):
    """OpenAI's /v1/embeddings."""

    input: str | list[str] = ""
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] = "float"


Request = ChatRequest | CompletionRequest | EmbeddingRequest
