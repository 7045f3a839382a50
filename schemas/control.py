"""The smaller records: control messages, announcements of models, dead letters."""

from typing import Literal

import msgspec

from schemas.envelope import DEFAULT_TENANT, Identifier, ModelHashes, RecordKey
from schemas.errors import ErrorBody


class Cancel(msgspec.Struct, kw_only=True, tag_field="schema", tag="cancel/1", omit_defaults=True):
    """Stop a request; tenant and session must be its own. A request that has ended already stays as it ended.

    It may stand in any partition under any key: who may end a request reads all of them. Ours stand under `key`.
    `reason` becomes part of the result.
    """

    request_id: RecordKey
    tenant: Identifier = DEFAULT_TENANT
    session: Identifier | None = None
    reason: str | None = None

    @property
    def key(self) -> str:
        """The canonical key of the request that is meant: with tenant and id it is who the request is."""
        return self.session or self.request_id


class ModelAnnouncement(msgspec.Struct, kw_only=True, tag_field="schema", tag="model/1", omit_defaults=True):
    """A worker serves this model."""

    model: str
    hashes: ModelHashes
    context_length: int
    worker: str
    max_running: int
    num_kv_tokens: int
    dtype: str
    device: str


class DeadLetter(msgspec.Struct, kw_only=True, tag_field="schema", tag="dead-letter/1", omit_defaults=True):
    """A full reproduction bundle: the record as it was (bytes are base64 in JSON), and what went wrong where.

    A bundle that is too large for a record lies in object storage under the full key `object`; the record then has
    neither key nor value nor headers.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    stage: Literal["gate", "pipeline", "worker"]
    error: ErrorBody
    request_id: str
    attempts: int = 1
    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes | None]] = []
    object: str | None = None
