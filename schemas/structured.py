"""Structured output: what a client may ask the text of an answer to be, and the one form in which that travels on.

Asked for under OpenAI's name (`response_format`) or vLLM's (`structured_outputs`); engine and replay know one form.
"""

from typing import Annotated, Any, Literal

import msgspec

# A schema travels in the batch and in the result, which are records.
MAX_STRUCTURE_BYTES = 64 * 1024

StructureKind = Literal["json", "regex", "choice"]


class TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(msgspec.Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class NamedSchema(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A JSON Schema with the name that OpenAI wants it to have. It is always enforced, whatever `strict` says."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema"):
    """JSON that is valid under a schema."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """vLLM's field; exactly one of these. `json` is a JSON Schema, as an object or as text; `regex` must match the
    whole answer; `choice` lists the possible answers."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    choice: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None


class OutputStructure(msgspec.Struct, frozen=True, kw_only=True):
    """What the text of an answer must be. `source` is a JSON Schema, a regular expression, or a JSON array of strings.

    Two structures that are equal allow the same texts. May be a key of a dict.
    """

    kind: StructureKind
    source: str
