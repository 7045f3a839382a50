"""What the long proofs (`make prove-NAME`) share: progress that an interrupted run goes on from, and the record."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from benchmarks.report import RESULTS, machine

ROOT = Path(__file__).parent.parent


class Progress(Protocol):
    """Progress is a Struct that names the source that it is of."""

    source: str


P = TypeVar("P", bound=Progress)


def load_progress(name: str, fresh: P) -> P:
    """That of an earlier run of the same source, else `fresh`."""
    try:
        progress = msgspec.json.decode(_path(name).read_bytes(), type=type(fresh))
    except (FileNotFoundError, msgspec.MsgspecError):
        return fresh
    return progress if progress.source == fresh.source else fresh


def save_progress(name: str, progress: Progress) -> None:
    """Keep it for a run that is interrupted."""
    _path(name).parent.mkdir(exist_ok=True)
    _path(name).write_bytes(msgspec.json.encode(progress))


def source_digest(sources: Iterable[str], *versions: str) -> str:
    """Names what is proved: files and folders below the root, and versions of what is beside them."""
    digest = hashlib.sha256("".join(versions).encode())
    for name in sources:
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def record(name: str, outcome: dict[str, Any], **beside: str) -> None:
    """Write down what was proved, where and on what."""
    whole = {"machine": machine() | {"command": f"make prove-{name}", **beside}, **outcome}
    RESULTS.mkdir(exist_ok=True)
    encoded = msgspec.json.encode(whole)
    (RESULTS / f"prove_{name}.json").write_bytes(msgspec.json.format(encoded, indent=2) + b"\n")
    print(encoded.decode())


def _path(name: str) -> Path:
    return ROOT / ".headrace" / f"prove-{name}.json"
