"""Writes what others may rely on to docs/schemas: `python -m schemas.publish`. A test holds the files to the code."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from schemas import asyncapi, json_schema

FOLDER = Path(__file__).parent.parent / "docs" / "schemas"


def documents() -> dict[str, Any]:
    """All published documents by file name."""
    schemas = {records.file: json_schema.document(records) for records in json_schema.PUBLISHED}
    return {**schemas, "asyncapi.json": asyncapi.document()}


def publish(folder: Path) -> list[Path]:
    """Write the documents into a folder and give their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, document in documents().items():
        path = folder / name
        path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        written.append(path)
    return written


def main(arguments: list[str]) -> int:
    """Publish to the folder that is named, by default that of this checkout."""
    if not arguments and not FOLDER.parent.is_dir():
        sys.stderr.write("this is no checkout: name a folder, as in `python -m schemas.publish FOLDER`\n")
        return 2
    for path in publish(Path(arguments[0]) if arguments else FOLDER):
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
