"""Paths of schemas within a schema, and which of them limit the same value."""

from typing import Any

import pytest

from models.subschemas import of_same_value, subschemas

SCHEMA: dict[str, Any] = {
    "$defs": {"a/b": {"maximum": 3}, "loop": {"$ref": "#/$defs/loop"}},
    "properties": {"not": {"type": "string"}, "list": {"prefixItems": [{}, {"const": {"not": 1}}], "items": False}},
    "items": [{"minimum": 1}],
    "allOf": [{"not": {"enum": [{"not": 2}]}}, True],
    "additionalProperties": {"$ref": "#/$defs/a~1b"},
    "dependentSchemas": "wrong",
}


def test_every_schema_has_its_path_and_values_are_no_schemas() -> None:
    assert dict(subschemas(SCHEMA)) == {
        "": SCHEMA,
        ".$defs.a/b": {"maximum": 3},
        ".$defs.loop": {"$ref": "#/$defs/loop"},
        ".properties.not": {"type": "string"},
        ".properties.list": SCHEMA["properties"]["list"],
        ".properties.list.prefixItems[0]": {},
        ".properties.list.prefixItems[1]": {"const": {"not": 1}},
        ".items[0]": {"minimum": 1},
        ".allOf[0]": SCHEMA["allOf"][0],
        ".allOf[0].not": {"enum": [{"not": 2}]},
        ".additionalProperties": {"$ref": "#/$defs/a~1b"},
    }


@pytest.mark.parametrize(
    ("schema", "others"),
    [
        ({"$ref": "#/$defs/a~1b"}, [{"maximum": 3}]),
        ({"$ref": "#/$defs/loop"}, [{"$ref": "#/$defs/loop"}]),
        ({"anyOf": [{"const": 1}, True], "not": {"const": 2}}, [{"const": 1}]),
        ({"$ref": "#/properties/list/prefixItems/1"}, [{"const": {"not": 1}}]),
        ({"$ref": "#/properties/list/prefixItems/7"}, []),
        ({"$ref": "#/nowhere/at/all"}, []),
        ({"$ref": "http://127.0.0.1/x"}, []),
        ({"allOf": [{"oneOf": [{"const": 5}]}]}, [{"oneOf": [{"const": 5}]}, {"const": 5}]),
    ],
)
def test_what_limits_the_same_value_is_followed_through_references(
    schema: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    assert list(of_same_value(schema, SCHEMA)) == [schema, *others]
