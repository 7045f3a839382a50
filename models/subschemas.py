"""Walks a JSON Schema: every schema in it with its path, and those that hold for one and the same value."""

from collections.abc import Iterator
from typing import Any, NamedTuple

_SCHEMA = ("items", "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems", "not", "if",
           "then", "else", "contains", "propertyNames")  # fmt: skip
_LIST = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_DICT = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
# What applies to the very value that the schema around it applies to.
_SAME_VALUE = ("allOf", "anyOf", "oneOf")


class Subschema(NamedTuple):
    """A schema inside another. `path` is written as in `.properties.age` or `.anyOf[1]`, empty for the whole."""

    path: str
    schema: dict[str, Any]


def subschemas(schema: dict[str, Any]) -> Iterator[Subschema]:
    """The schema itself, then all schemas in it, outer ones first."""
    pending = [Subschema("", schema)]
    while pending:
        subschema = pending.pop()
        yield subschema
        pending += reversed(list(_members(subschema)))


def of_same_value(schema: dict[str, Any], root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema, and those that it combines with or refers to: all that may limit the value that it describes.

    Only references within `root` ("#/…") are followed.
    """
    pending, seen = [schema], set()
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        lists = [current[name] for name in _SAME_VALUE if isinstance(current.get(name), list)]
        pending += [member for members in lists for member in members if isinstance(member, dict)]
        if (target := _target(current.get("$ref"), root)) is not None:
            pending.append(target)


def _members(parent: Subschema) -> Iterator[Subschema]:
    schema, path = parent.schema, parent.path
    for name in _SCHEMA:
        if isinstance(schema.get(name), dict):
            yield Subschema(f"{path}.{name}", schema[name])
    for name in _LIST:
        members = schema.get(name)
        for index, member in enumerate(members if isinstance(members, list) else ()):
            if isinstance(member, dict):
                yield Subschema(f"{path}.{name}[{index}]", member)
    for name in _DICT:
        named = schema.get(name)
        for key, member in named.items() if isinstance(named, dict) else ():
            if isinstance(member, dict):
                yield Subschema(f"{path}.{name}.{key}", member)


def _target(reference: object, root: dict[str, Any]) -> dict[str, Any] | None:
    """The schema that a JSON pointer (RFC 6901) within the document means."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    place: Any = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, dict):
            place = place.get(name)
        elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            return None
    return place if isinstance(place, dict) else None
