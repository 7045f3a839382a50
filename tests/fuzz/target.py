"""What is fuzzed: inputs, and what must hold of each. The suite runs a few of them, `make prove-fuzz` many."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# A broker refuses records of 1 MiB; key, headers and framing need some of it.
MAX_RECORD_BYTES = 1_000_000


def must(condition: object, what: object) -> None:
    """An assertion that may stand where an error of ours is looked at. Raises AssertionError."""
    if not condition:
        raise AssertionError(what)


UNTIMED = settings(deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Target:
    """One reader of foreign bytes. `check` raises for what must not happen: any error but ours is such a thing."""

    name: str
    inputs: st.SearchStrategy[Any] = field(repr=False)
    check: Callable[[Any], None] = field(repr=False)
