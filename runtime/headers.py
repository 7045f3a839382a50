"""The headers of our records: CloudEvents (Kafka binding, binary mode) and W3C trace context, all UTF-8."""

from runtime.tracing import HEADER as TRACEPARENT
from schemas.envelope import Envelope

SPEC_VERSION = b"1.0"

# On a record that the gate wrote to `requests` again because its partition was wrong: where it came from.
REROUTED_FROM = "headrace_rerouted_from"


def record_headers(kind: str, envelope: Envelope, *, source: str) -> list[tuple[str, bytes]]:
    """Headers of a record about one request. `kind` is the record's name ("turn", "delta"), `source` its writer."""
    return [
        ("ce_specversion", SPEC_VERSION),
        ("ce_type", f"headrace.{kind}".encode()),
        ("ce_source", source.encode()),
        ("ce_id", envelope.request_id.encode()),
        ("tenant", envelope.tenant.encode()),
        (TRACEPARENT, envelope.traceparent.encode()),
    ]
