"""What every record of a request carries besides its own content: who asked, in which order, until when."""

from typing import Annotated, Literal

import msgspec

PriorityClass = Literal["interactive", "bulk"]
Status = Literal["completed", "failed", "cancelled", "expired"]

# Ids become record keys, object names and parts of log lines. The look-ahead refuses the newline that `$` lets pass.
IDENTIFIER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$(?!\n)"
Identifier = Annotated[str, msgspec.Meta(pattern=IDENTIFIER_PATTERN)]

DEFAULT_TENANT = "default"


class Envelope(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The part of a request that control work needs, the same on `turns` and `batches`.

    Times are broker time (LogAppendTime) in milliseconds since the epoch. `key` is the record key on every topic of
    the request's way (session id, else request id), so that all its records share one partition number.
    """

    request_id: str
    key: str
    accepted_at_ms: int
    deadline_ms: int
    traceparent: str
    tenant: str = DEFAULT_TENANT
    session: str | None = None
    turn: int | None = None
    priority_class: PriorityClass = msgspec.field(name="class", default="interactive")
    priority: int = 0
    stream: bool = True


class ModelHashes(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a replay must find unchanged: hex digests of weights, tokenizer and chat template."""

    model: str
    tokenizer: str
    template: str
