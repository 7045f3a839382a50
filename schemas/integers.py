"""Integers as the world's JSON writers put them: 64.0 is 64, as OpenAI reads it, since JavaScript knows one number.

Only what a type asks as an integer is touched, and only where nothing is lost: 64.5 stays what it is, and is refused.
"""

from collections.abc import Callable
from typing import Any

from msgspec import inspect

# Beyond it neighbouring integers are one and the same float: which one was meant cannot be known.
MAX_EXACT = 2**53

Reader = Callable[[Any], Any]


def integer_reader(record_type: type) -> Reader:
    """A function that gives a decoded JSON value of `record_type` with floats that are integers made so.

    The value itself is not changed; parts without such numbers are shared with it.
    """
    return _reader(inspect.type_info(record_type)) or (lambda value: value)


def _reader(kind: inspect.Type) -> Reader | None:
    """The reader for one type; None where nothing below it asks for an integer."""
    match kind:
        case inspect.IntType():
            return _exact
        case inspect.UnionType(types=members):
            return _union_reader(members)
        case inspect.ListType(item_type=item):
            return _list_reader(item)
        case inspect.DictType(value_type=item):
            return _dict_reader(item)
        case inspect.StructType(fields=fields):
            return _struct_reader(fields)
    return None


def _exact(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT else value


def _list_reader(item: inspect.Type) -> Reader | None:
    read = _reader(item)
    if read is None:
        return None
    return lambda value: [read(member) for member in value] if isinstance(value, list) else value


def _dict_reader(item: inspect.Type) -> Reader | None:
    read = _reader(item)
    if read is None:
        return None
    return lambda value: {name: read(v) for name, v in value.items()} if isinstance(value, dict) else value


def _union_reader(members: tuple[inspect.Type, ...]) -> Reader | None:
    if any(isinstance(member, inspect.FloatType) for member in members):
        return None
    readers = [read for member in members if (read := _reader(member)) is not None]
    if not readers:
        return None

    def read_any(value: Any) -> Any:
        # Each looks at values of its own JSON kind only, so at most one of them changes anything.
        for read in readers:
            value = read(value)
        return value

    return read_any


def _struct_reader(fields: tuple[inspect.Field, ...]) -> Reader | None:
    readers = {field.encode_name: read for field in fields if (read := _reader(field.type)) is not None}
    if not readers:
        return None

    def read_fields(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return value | {name: read(value[name]) for name, read in readers.items() if name in value}

    return read_fields
