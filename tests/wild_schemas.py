"""JSON Schemas of keywords thrown together, as no person writes them: with contradictions, overlaps and open ends."""

import random
from typing import Any

Schema = dict[str, Any]

_TYPES = ("string", "integer", "number", "boolean", "null", "object", "array")
_PATTERNS = (
    "a",
    "^a",
    "b$",
    "[0-9]{2}",
    "^x?y+$",
    "(ab|cd)",
    "^\\S+$",
    "^$",
    "^.{0,3}$",
    "\\d",
    "\\w$",
    "^\\d+\\.\\d$",
)
_VALUES: tuple[Any, ...] = (1, 2, 2.0, "a", "abc", None, True, [], [1], {"a": 1}, {}, "", -3)


def wild_schema(seed: int) -> Schema:
    """The schema of a seed."""
    maker = _Maker(random.Random(seed))
    return maker.schema(2) | {"$defs": {"x": maker.inner(1), "y": maker.inner(0)}}


class _Maker:
    def __init__(self, numbers: random.Random) -> None:
        self._random = numbers

    def schema(self, depth: int) -> Schema:
        """Each keyword is there or not, whatever the others say."""
        found = self._plain() | self._object(depth) | self._array(depth)
        return found | (self._combined(depth) if depth else {})

    def inner(self, depth: int) -> Schema:
        """A schema one level down."""
        if depth:
            return self.schema(depth - 1)
        return {"type": self._random.choice(_TYPES[:5]), "maxLength": 3, "minimum": 0, "maximum": 9}

    def _some(self, **chances: float) -> set[str]:
        return {name for name, chance in chances.items() if self._random.random() < chance}

    def _plain(self) -> Schema:
        choose, between = self._random.choice, self._random.randrange
        kind = choose(_TYPES) if self._random.random() < 0.8 else self._random.sample(_TYPES, 2)
        possible: Schema = {
            "type": kind,
            "minLength": between(3),
            "maxLength": between(1, 6),
            "pattern": choose(_PATTERNS),
            "minimum": choose([-5, 0, 1, 2.5, 10]),
            "maximum": choose([5, 9, 10.5, 12, 100]),
            "exclusiveMinimum": choose([-1, 0, 2.5]),
            "exclusiveMaximum": choose([3, 11.5]),
            "multipleOf": choose([1, 2, 3, 0.5]),
            "enum": self._random.sample(_VALUES, between(1, 5)),
            "const": choose([1, "abc", None, {"a": 1}, [1, 2]]),
        }
        kept = self._some(
            type=0.75, minLength=0.4, maxLength=0.5, pattern=0.15, minimum=0.3, maximum=0.3, exclusiveMinimum=0.1,
            exclusiveMaximum=0.1, multipleOf=0.1, enum=0.1, const=0.05,
        )  # fmt: skip
        return {name: value for name, value in possible.items() if name in kept}

    def _object(self, depth: int) -> Schema:
        choose, sample, between = self._random.choice, self._random.sample, self._random.randrange
        possible: Schema = {
            "properties": {name: self.inner(depth) for name in sample(["a", "b", "c", "é"], between(1, 3))},
            "required": sample(["a", "b", "c"], between(1, 3)),
            "additionalProperties": choose([False, False, True, self.inner(depth)]),
            "patternProperties": {choose(["^p", "q$", "^[ab]$"]): self.inner(depth)},
            "maxProperties": between(1, 4),
            "minProperties": between(2),
        }
        kept = self._some(
            properties=0.4, required=0.3, additionalProperties=0.35, patternProperties=0.1, maxProperties=0.1,
            minProperties=0.1,
        )  # fmt: skip
        return {name: value for name, value in possible.items() if name in kept}

    def _array(self, depth: int) -> Schema:
        choose, between = self._random.choice, self._random.randrange
        possible: Schema = {
            "items": choose([False, True, self.inner(depth), self.inner(depth)]),
            "prefixItems": [self.inner(depth) for _ in range(between(1, 3))],
            "minItems": between(3),
            "maxItems": between(1, 4),
        }
        kept = self._some(items=0.4, prefixItems=0.2, minItems=0.3, maxItems=0.4)
        return {name: value for name, value in possible.items() if name in kept}

    def _combined(self, depth: int) -> Schema:
        possible: Schema = {
            "anyOf": [self.inner(depth), self.inner(depth)],
            "allOf": [self.inner(depth) for _ in range(self._random.randrange(1, 3))],
            "oneOf": [self.inner(depth), self.inner(depth)],
            "$ref": self._random.choice(["#/$defs/x", "#/$defs/y"]),
        }
        kept = self._some(anyOf=0.12, allOf=0.12, oneOf=0.06, **{"$ref": 0.08})
        return {name: value for name, value in possible.items() if name in kept}
