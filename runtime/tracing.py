"""W3C Trace Context (https://www.w3.org/TR/trace-context/) on the log: every record of a request has its trace id."""

import secrets
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

HEADER = "traceparent"

# Version 00 has 55 characters; later ones may append to it. It travels in every record: a long one is no trace.
_MAX_LENGTH = 256
Headers = Sequence[tuple[str, bytes | None]]

_propagator = TraceContextTextMapPropagator()


def traceparent_of(headers: Headers) -> str:
    """The `traceparent` that a record carries, or a new one where it carries none that is valid."""
    for name, value in headers:
        # Kafka allows a header without a value.
        if name == HEADER and value is not None and _is_valid(text := value.decode("ascii", "replace")):
            return text
    # Version 00, 16 bytes of trace id, 8 of parent id, sampled.
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def _is_valid(traceparent: str) -> bool:
    if len(traceparent) > _MAX_LENGTH:
        return False
    context = _propagator.extract({HEADER: traceparent})
    return trace.get_current_span(context).get_span_context().is_valid
