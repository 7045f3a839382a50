"""Small files of the local stack: templates that travel in the wheel, private files that are written whole."""

import os
import tempfile
from importlib import resources
from pathlib import Path
from typing import TypeVar

from schemas.codec import Codec
from schemas.errors import LocalStackError, MalformedRecord

T = TypeVar("T")


def read_template(name: str) -> str:
    """Text of a file in `headrace/local/templates`."""
    return (resources.files("headrace.local") / "templates" / name).read_text(encoding="utf-8")


def write_private(path: Path, content: bytes) -> None:
    """Write a file with mode 0600 so that a reader sees the old content or the new, never a part."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp makes it 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_state(path: Path, codec: Codec[T], *, remedy: str) -> T | None:
    """What one of our small JSON files holds; None if there is none.

    Raises:
        LocalStackError: it is damaged; the message ends with the remedy.
    """
    try:
        return codec.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except MalformedRecord as error:
        raise LocalStackError(f"{path} is damaged ({error.message}): {remedy}") from error


def make_folder(path: Path) -> Path:
    """Create a folder of ours, readable by its owner only. Raises LocalStackError if that is not possible."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise LocalStackError(
            f"cannot create the folder {path}: {error.strerror}; choose another data folder"
        ) from error
    return path
