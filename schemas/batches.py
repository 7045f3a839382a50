"""What the pipeline puts on `batches.<model>`: token ids ready for a worker, or a refusal that a worker shall end."""

import msgspec

from schemas.claims import ClaimCheck
from schemas.envelope import Envelope, ModelHashes, ModelName, Natural, ObjectKey
from schemas.errors import ErrorBody
from schemas.requests import Message
from schemas.sampling import SamplingParams


class Sequence(msgspec.Struct, kw_only=True, tag_field="schema", tag="sequence/1", omit_defaults=True):
    """One prompt as token ids with all that the worker needs to answer it.

    `prompt_token_ids` is the whole context; its first `num_base_tokens` belong to earlier turns of the session and are
    exactly the ids that were computed then. `messages` are this turn's messages, for the session's state.
    `parent` is the object of the turn before. With `claim`, the ids and messages are in its object and not here.
    """

    envelope: Envelope
    model: ModelName
    hashes: ModelHashes
    prompt_token_ids: list[int]
    sampling: SamplingParams
    chat: bool = True
    num_base_tokens: Natural = 0
    parent: ObjectKey | None = None
    messages: list[Message] = []
    claim: ClaimCheck | None = None


class Refusal(msgspec.Struct, kw_only=True, tag_field="schema", tag="refusal/1", omit_defaults=True):
    """A request that a stateless stage cannot pass on. Stages decide nothing: a worker writes the terminal record."""

    envelope: Envelope
    model: ModelName
    stage: str
    error: ErrorBody
    chat: bool = True


Member = Sequence | Refusal


class Batch(msgspec.Struct, kw_only=True, tag_field="schema", tag="batch/1"):
    """Sequences packed into one record for the log; the engine batches by itself. Finished when every member is."""

    members: list[Member]
