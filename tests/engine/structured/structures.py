"""Structures for tests, short to write."""

import json
from typing import Any

from schemas.structured import OutputStructure

# Words of three letters without end in sight: holds an answer to itself for as long as a test likes.
WORDS = OutputStructure(kind="regex", source="([a-z]{3} ){50}")
# A lexer learns a new state at nearly every token of such an answer, until it may learn no more.
INSATIABLE = OutputStructure(kind="regex", source="(a|b)*a(a|b){60}c")


def of_schema(schema: Any) -> OutputStructure:
    """A JSON Schema."""
    return OutputStructure(kind="json", source=json.dumps(schema, ensure_ascii=False))


def of_choice(*texts: str) -> OutputStructure:
    """One of these texts."""
    return OutputStructure(kind="choice", source=json.dumps(texts))


def of_regex(source: str) -> OutputStructure:
    """A text that matches."""
    return OutputStructure(kind="regex", source=source)


PERSON = of_schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b", None]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    }
)
