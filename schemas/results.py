"""What ends a request on `results`: exactly one terminal record, in the shape of an OpenAI completion."""

import msgspec

from schemas.claims import ClaimCheck
from schemas.envelope import DEFAULT_TENANT, ModelHashes, Natural, Status
from schemas.errors import ErrorBody
from schemas.requests import Message
from schemas.sampling import FinishReason, SamplingParams, TokenLogprob
from schemas.tokens import Usage


class ResultChoice(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One answer: `message` for chats, `text` for completions; `token_ids` exactly as they were sampled."""

    index: int
    finish_reason: FinishReason
    token_ids: list[int] = []
    message: Message | None = None
    text: str | None = None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprob] | None = None

    @property
    def content(self) -> str:
        """The answer's text, whichever kind it is."""
        return self.message.text if self.message else self.text or ""


class Timings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where the time went, in milliseconds. `ttft_ms` counts from acceptance by the broker to the first token."""

    queue_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    tokens_per_s: float | None = None


class Result(msgspec.Struct, kw_only=True, tag_field="schema", tag="result/1", omit_defaults=True):
    """The terminal record of a request.

    A turn of a session also carries what its state object is made of: `turn`, `parent`, `messages`, and how many of
    `prompt_token_ids` came from earlier turns. With `claim` the result was too large for a record: `choices`,
    `messages` and `prompt_token_ids` are members of a JSON object in object storage.
    """

    id: str
    object: str
    created: int
    model: str
    request_id: str
    status: Status
    choices: list[ResultChoice] = []
    usage: Usage = msgspec.field(default_factory=Usage)
    error: ErrorBody | None = None
    tenant: str = DEFAULT_TENANT
    session: str | None = None
    turn: int | None = None
    parent: str | None = None
    messages: list[Message] = []
    prompt_token_ids: list[int] = []
    num_base_tokens: int = 0
    sampling: SamplingParams | None = None
    hashes: ModelHashes | None = None
    build: str | None = None
    source: str | None = None
    epoch: int | None = None
    attempts: int = 1
    traceparent: str | None = None
    timings: Timings | None = None
    claim: ClaimCheck | None = None

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].content if self.choices else ""


class DuplicateOf(msgspec.Struct, kw_only=True, tag_field="schema", tag="duplicate/1", omit_defaults=True):
    """Not terminal: a request that was sent again; its result is the one at `result_offset` of this partition.

    `has_ended` says that the first one has ended: nothing more will be heard under this id. `session` is the one that
    waits for it.
    """

    request_id: str
    tenant: str = DEFAULT_TENANT
    result_offset: Natural | None = None
    has_ended: bool = False
    session: str | None = None


ResultRecord = Result | DuplicateOf
