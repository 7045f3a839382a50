"""JSON Schemas made from a seed. All that they allow is bounded, so that even a model of noise comes to an end."""

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
_Make = Callable[[int], Schema]

MAX_DEPTH = 3
_NAMES = ("id", "name", "a b", "größe", "x_1", "tags", "日本", 'q"uote', "back\\slash", "n", "kind", "é", "value")
_WORDS = (
    "",
    "yes",
    "no",
    "café",
    "line\nbreak",
    "tab\t",
    'a"b',
    "\\",
    "🎉 party",
    "null",
    "0",
    "日本語",
    "</s>",
    "<|im_end|>",
)
_PATTERNS = (
    "^[a-z]{1,6}$", "^\\d{3}-\\d{4}$", "^(red|green|blue)$", "^[A-Z][a-z]{0,5}( [A-Z][a-z]{0,5})?$", "^#[0-9a-f]{6}$",
    "^v\\d{1,2}(\\.\\d{1,2}){0,2}$", "^[^\\s\"\\\\]{1,4}$",
)  # fmt: skip
_FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email")


def generated_schema(seed: int) -> Schema:
    """The schema of a seed: objects, arrays, strings, numbers, unions and references, nested up to MAX_DEPTH."""
    numbers = random.Random(seed)
    schema = _Maker(numbers).value(MAX_DEPTH)
    if numbers.random() < 0.2:
        return {"$defs": {"item": schema}, "type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2}
    return schema


class _Maker:
    def __init__(self, numbers: random.Random) -> None:
        self._random = numbers

    def value(self, depth: int) -> Schema:
        """Any schema that nests at most so deep."""
        plain: list[_Make] = [
            self._string,
            self._pattern,
            self._format,
            self._integer,
            self._number,
            self._enum,
            self._const,
            self._simple,
        ]
        nested: list[_Make] = [
            self._object,
            self._object,
            self._array,
            self._tuple,
            self._any_of,
            self._one_of,
            self._all_of,
        ]
        return self._random.choice(plain + (nested * 2 if depth else []))(depth - 1)

    def _string(self, _: int) -> Schema:
        least = self._random.choice([0, 0, 1, 4])
        return {"type": "string", "minLength": least, "maxLength": least + self._random.randrange(8)}

    def _pattern(self, _: int) -> Schema:
        return {"type": "string", "pattern": self._random.choice(_PATTERNS)}

    def _format(self, _: int) -> Schema:
        return {"type": "string", "format": self._random.choice(_FORMATS), "maxLength": 40}

    def _integer(self, _: int) -> Schema:
        least = self._random.randrange(-500, 500)
        schema: Schema = {"type": "integer", "minimum": least, "maximum": least + self._random.randrange(30, 1000)}
        if self._random.random() < 0.3:
            schema["multipleOf"] = self._random.choice([2, 3, 5, 10])
        return schema

    def _number(self, _: int) -> Schema:
        least = self._random.randrange(-50, 50) / 4
        key = self._random.choice(["minimum", "exclusiveMinimum"])
        # (Less than 1 above a whole number that is excluded is refused.)
        return {
            "type": "number",
            key: least,
            "maximum": least + self._random.choice([0.5, 3, 1000] if key == "minimum" else [3, 1000]),
        }

    def _enum(self, _: int) -> Schema:
        values: list[Any] = [*self._random.sample(_WORDS, 3), self._random.randrange(100), None, True, [1, {"k": "v"}]]
        return {"enum": self._random.sample(values, self._random.randrange(1, 6))}

    def _const(self, _: int) -> Schema:
        return {"const": self._random.choice([*_WORDS, 7, -0.5, None, {"a": [1, 2], "b": {}}])}

    def _simple(self, _: int) -> Schema:
        return {"type": self._random.choice(["boolean", "null", ["boolean", "null"]])}

    def _object(self, depth: int) -> Schema:
        names = self._random.sample(_NAMES, self._random.randrange(5))
        schema: Schema = {
            "type": "object",
            "properties": {name: self.value(depth) for name in names},
            "required": [name for name in names if self._random.random() < 0.6],
            "additionalProperties": False,
        }
        if self._random.random() < 0.2:
            schema["patternProperties"] = {"^z[0-9]$": self.value(0)}
            schema["maxProperties"] = len(names) + 2
            schema["required"] = names
        return schema

    def _array(self, depth: int) -> Schema:
        least = self._random.randrange(3)
        return {"type": "array", "items": self.value(depth), "minItems": least, "maxItems": least + 2}

    def _tuple(self, depth: int) -> Schema:
        items = [self.value(depth) for _ in range(self._random.randrange(1, 4))]
        return {
            "type": "array",
            "prefixItems": items,
            "items": False,
            "minItems": self._random.randrange(len(items) + 1),
        }

    def _any_of(self, depth: int) -> Schema:
        return {"anyOf": [self.value(depth) for _ in range(self._random.randrange(1, 4))]}

    def _one_of(self, depth: int) -> Schema:
        """Told apart by a constant, as tagged unions are."""
        kinds = self._random.sample(["cat", "dog", "fish"], 2)
        return {"oneOf": [self._tagged(kind, depth) for kind in kinds]}

    def _tagged(self, kind: str, depth: int) -> Schema:
        return {
            "type": "object",
            "properties": {"kind": {"const": kind}, "of": self.value(depth)},
            "required": ["kind", "of"],
            "additionalProperties": False,
        }

    def _all_of(self, depth: int) -> Schema:
        return {"allOf": [self._integer(depth), {"type": "integer"}, {"minimum": -10_000}]}
