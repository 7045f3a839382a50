"""W3C Trace Context (https://www.w3.org/TR/trace-context/) on the log: every record of a request has its trace id."""

import secrets
from collections.abc import Sequence

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

HEADER = "traceparent"
Headers = Sequence[tuple[str, bytes]]

_propagator = TraceContextTextMapPropagator()


def traceparent_of(headers: Headers) -> str:
    """The `traceparent` that a record carries, or a new one where it carries none that is valid."""
    for name, value in headers:
        if name == HEADER and _is_valid(text := value.decode("ascii", "replace")):
            return text
    # Version 00, 16 bytes of trace id, 8 of parent id, sampled.
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def _is_valid(traceparent: str) -> bool:
    context = _propagator.extract({HEADER: traceparent})
    return trace.get_current_span(context).get_span_context().is_valid
