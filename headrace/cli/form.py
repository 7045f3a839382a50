"""Options that say which form an answer shall have, as OpenAI's field `response_format`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

JsonSchemaOption = Annotated[
    Path | None, typer.Option("--json-schema", metavar="FILE", help="The answer is JSON that is valid under it.")
]


def response_format(schema_file: Path | None, name: str | None = None) -> dict[str, Any] | None:
    """The field for a schema's file, or for a name (text, json); None for neither.

    Raises:
        typer.BadParameter: the file has no schema, the name is another, or both are given and contradict each other.
    """
    if schema_file is not None:
        if name == "text":
            raise typer.BadParameter("--json-schema asks for JSON, --response-format for text: leave one out")
        schema = {"name": schema_file.stem[:64] or "schema", "schema": _read(schema_file)}
        return {"type": "json_schema", "json_schema": schema}
    formats = {None: None, "text": {"type": "text"}, "json": {"type": "json_object"}}
    if name not in formats:
        raise typer.BadParameter(f"--response-format is text or json, not {name!r}")
    return formats[name]


def _read(file: Path) -> dict[str, Any]:
    try:
        schema = json.loads(file.read_text())
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{file} is no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise typer.BadParameter(f"{file} has no JSON Schema: that is a JSON object")
    return schema
