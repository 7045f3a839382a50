"""What JSON holds and cannot be passed on from stage to stage: integers of any size, and nesting of any depth."""

from collections.abc import Callable, Mapping
from typing import Any

from schemas.errors import InvalidValue
from schemas.requests import EmbeddingRequest, Request
from schemas.structured import JsonSchemaFormat

# The decoders of later stages recurse on a deeper stack than the first one: a value at their limit must not get there.
MAX_NESTING = 100


def passed_on(encode: Callable[[], bytes], request: Request, unknown_fields: Mapping[str, Any]) -> bytes:
    """What `encode` makes of a record that holds this request.

    Raises:
        InvalidValue: the next stage could not read it, or it cannot be written.
    """
    if _nesting_exceeds([unknown_fields, *_free_values(request)], MAX_NESTING):
        raise InvalidValue(f"a field is nested more than {MAX_NESTING} levels deep")
    try:
        return encode()
    except (OverflowError, ValueError, RecursionError) as error:
        # JSON has integers of any size, MessagePack has 64 bits.
        raise InvalidValue(f"a value cannot be passed on: {error}") from error


def _free_values(request: Request) -> list[Any]:
    """Parts of the request that may nest as deeply as the client likes."""
    if isinstance(request, EmbeddingRequest):
        return []
    asked = request.response_format
    schema = asked.json_schema.schema if isinstance(asked, JsonSchemaFormat) else None
    return [request.metadata, schema, request.structured_outputs and request.structured_outputs.json]


def _nesting_exceeds(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    return levels == 0 or any(_nesting_exceeds(item, levels - 1) for item in value)
