"""What engine workers put on `tokens`: deltas, and the marks by which a successor and every reader find their way.

Together they are the journal. A delta is void if a committed takeover of its source with a higher epoch stands before
it in the partition; every reader applies this rule.
"""

from typing import Annotated, Literal

import msgspec

from schemas.envelope import DEFAULT_TENANT, ModelHashes, Natural, Status
from schemas.errors import ErrorBody
from schemas.sampling import FinishReason, TokenLogprob


class Usage(msgspec.Struct, kw_only=True):
    """Tokens counted as OpenAI counts them, zeros too; `cached_tokens` of the prompt were not computed again."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0


class ChunkMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The `delta` of an OpenAI chat chunk."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct, kw_only=True):
    """The one choice of a chunk: `delta` for chats, `text` for completions.

    `stop_reason` is the stop string or token id that ended the choice (vLLM's name), on its last chunk only.
    """

    index: int
    delta: ChunkMessage | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    finish_reason: FinishReason | None = None
    logprobs: list[TokenLogprob] | None = None
    stop_reason: str | int | msgspec.UnsetType = msgspec.UNSET

    @property
    def content(self) -> str:
        """The text of the chunk, whichever kind it is."""
        if isinstance(self.delta, ChunkMessage):
            return self.delta.content or ""
        return self.text if isinstance(self.text, str) else ""


class TokenDelta(msgspec.Struct, kw_only=True, tag_field="schema", tag="delta/1", omit_defaults=True):
    """An OpenAI chunk, plus its place in the stream.

    `index` is the place of `token_ids[0]` in the stream of its choice, counted from 0. `source` is the input partition
    ("topic-partition") that the request came from, `epoch` the takeover that the writer worked under, `attempt` how
    many takeovers the request had seen. The last delta of a choice has a finish reason, with tokens or without; the
    last delta of the request also has usage, `status` and, where something went wrong, `error`: together they decide
    how the request ends, also when its writer dies before the result is written.
    """

    id: str
    object: str
    created: int
    model: str
    choices: Annotated[list[ChunkChoice], msgspec.Meta(min_length=1)]
    request_id: str
    index: Natural
    epoch: Natural
    source: str
    tenant: str = DEFAULT_TENANT
    attempt: int = 0
    choice: Natural = 0
    token_ids: list[int] = []
    usage: Usage | None = None
    status: Status | None = None
    error: ErrorBody | None = None

    @property
    def text(self) -> str:
        """The text of this delta."""
        return self.choices[0].content

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the choice ended, on its last delta."""
        return self.choices[0].finish_reason


class Takeover(msgspec.Struct, kw_only=True, tag_field="schema", tag="takeover/1", omit_defaults=True):
    """A worker owns `source` from here on. The offset of this record is the worker's epoch."""

    source: str
    worker: str
    committed_offset: Natural
    previous_epoch: Natural | None = None
    hashes: ModelHashes | None = None
    build: str | None = None


class Admitted(msgspec.Struct, kw_only=True, tag_field="schema", tag="admitted/1", omit_defaults=True):
    """A worker is about to run the first forward pass of a request."""

    request_id: str
    source: str
    epoch: Natural
    tenant: str = DEFAULT_TENANT
    attempt: int = 0


class Ended(msgspec.Struct, kw_only=True, tag_field="schema", tag="ended/1", omit_defaults=True):
    """The terminal record of a request was written in the same transaction as this mark.

    `input_offset` is the offset in `source` of the record that was answered: any other one of the same id is a
    duplicate.
    """

    request_id: str
    tenant: str
    source: str
    epoch: Natural
    status: Status
    input_offset: Natural | None = None


class Released(msgspec.Struct, kw_only=True, tag_field="schema", tag="released/1", omit_defaults=True):
    """A worker let go of a request in good order: the attempt is no strike."""

    request_id: str
    source: str
    epoch: Natural
    tenant: str = DEFAULT_TENANT


class Requeued(msgspec.Struct, kw_only=True, tag_field="schema", tag="requeued/1", omit_defaults=True):
    """A request was written to an input topic again, as record number `count`."""

    request_id: str
    source: str
    epoch: Natural
    count: Natural
    tenant: str = DEFAULT_TENANT


JournalRecord = TokenDelta | Takeover | Admitted | Ended | Released | Requeued
