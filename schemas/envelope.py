"""What every record of a request carries besides its own content: who asked, in which order, until when."""

from typing import Annotated, Literal

import msgspec

PriorityClass = Literal["interactive", "bulk"]
Status = Literal["completed", "failed", "cancelled", "expired"]

# Ids become record keys, object names and parts of log lines. The look-ahead refuses the newline that `$` lets pass.
IDENTIFIER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$(?!\n)"
Identifier = Annotated[str, msgspec.Meta(pattern=IDENTIFIER_PATTERN)]

DEFAULT_TENANT = "default"

# Whatever travels must fit Kafka's offsets and MessagePack's integers, also when somebody else wrote it.
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
# A time that calendars know: up to the year 9999.
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799_999)]
# An id of ours names a place: a topic's name (249 characters), a partition, an offset.
RecordKey = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
Digest = Annotated[str, msgspec.Meta(max_length=128)]
ModelName = Annotated[str, msgspec.Meta(max_length=200)]
ObjectKey = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]


class Envelope(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The part of a request that control work needs, the same on `turns` and `batches`.

    Times are broker time (LogAppendTime) in milliseconds since the epoch. `key` is the record key on every topic of
    the request's way (session id, else request id), so that all its records share one partition number.

    What is longer than any of ours is refused where it is decoded: ids stand in every record that is written of a
    request, and one that fits no record would stop its partition.
    """

    request_id: RecordKey
    key: RecordKey
    accepted_at_ms: Milliseconds
    deadline_ms: Milliseconds
    traceparent: Annotated[str, msgspec.Meta(max_length=256)]
    tenant: Identifier = DEFAULT_TENANT
    session: Identifier | None = None
    turn: Natural | None = None
    priority_class: PriorityClass = msgspec.field(name="class", default="interactive")
    priority: int = 0
    stream: bool = True


class ModelHashes(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a replay must find unchanged: hex digests of weights, tokenizer and chat template."""

    model: Digest
    tokenizer: Digest
    template: Digest
