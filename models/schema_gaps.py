"""What llguidance takes in a JSON Schema and does not hold an answer to: found by 44,000 answers under random schemas.

Such a schema is refused: an answer that ends is valid, or the promise is none.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from models.subschemas import of_same_value, subschemas


class Gap(NamedTuple):
    """A part of a schema that would not be enforced: its path in the schema, and what to do."""

    path: str
    message: str


def gaps(schema: dict[str, Any]) -> Iterator[Gap]:
    """All parts that would not be enforced."""
    if "x-guidance" in schema:
        yield Gap(".x-guidance", "`x-guidance` is no keyword of JSON Schema: leave it out")
    for path, part in subschemas(schema):
        yield from _least_properties(path, part)
        yield from _exclusive_bounds(path, part, schema)


def _least_properties(path: str, part: dict[str, Any]) -> Iterator[Gap]:
    """Names that are not required may come twice, which JSON readers count once."""
    least, required = part.get("minProperties"), part.get("required")
    if isinstance(least, int | float) and least > (len(required) if isinstance(required, list) else 0):
        yield Gap(
            f"{path}.minProperties",
            "`minProperties` is not supported above the number of `required` names: require more",
        )


class _Bounds(NamedTuple):
    """Limits of a number. The exclusive ones are in the others too."""

    lower: list[float]
    upper: list[float]
    exclusive_lower: list[float]
    exclusive_upper: list[float]


def _exclusive_bounds(path: str, part: dict[str, Any], root: dict[str, Any]) -> Iterator[Gap]:
    """Between two limits less than one apart, a whole number that is excluded gets in (llguidance 1.9.1)."""
    if part.get("type") == "integer" or not _may_bound(part):
        return
    bounds = _bounds(part, root)
    below = any(
        number.is_integer() and number < upper < number + 1
        for number in bounds.exclusive_lower
        for upper in bounds.upper
    )
    above = any(
        number.is_integer() and number - 1 < lower < number
        for number in bounds.exclusive_upper
        for lower in bounds.lower
    )
    for is_wrong, name, instead in ((below, "exclusiveMinimum", "minimum"), (above, "exclusiveMaximum", "maximum")):
        if is_wrong:
            yield Gap(
                f"{path}.{name}",
                f"`{name}` with a whole number and another limit less than 1 away is not supported: use `{instead}`",
            )


def _may_bound(part: dict[str, Any]) -> bool:
    return any(name in part for name in ("exclusiveMinimum", "exclusiveMaximum", "allOf", "anyOf", "oneOf", "$ref"))


def _bounds(part: dict[str, Any], root: dict[str, Any]) -> _Bounds:
    bounds = _Bounds([], [], [], [])
    for schema in of_same_value(part, root):
        _collect(schema, "minimum", "exclusiveMinimum", bounds.lower, bounds.exclusive_lower)
        _collect(schema, "maximum", "exclusiveMaximum", bounds.upper, bounds.exclusive_upper)
    return bounds


def _collect(
    schema: dict[str, Any], name: str, exclusive_name: str, plain: list[float], exclusive: list[float]
) -> None:
    value, exclusive_value = _number(schema.get(name)), _number(schema.get(exclusive_name))
    # In draft 4 it is a boolean that makes the other one exclusive.
    if schema.get(exclusive_name) is True:
        exclusive_value = value
    plain += [number for number in (value, exclusive_value) if number is not None]
    exclusive += [] if exclusive_value is None else [exclusive_value]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Far beyond 2**53 an integer has no float; no limit there is less than 1 away from another that has one.
    return float(value) if abs(value) < 2**1000 and math.isfinite(value) else None
