"""docker-compose.yml as Compose reads it: merged, with its variables filled in from their defaults."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped] # publishes no types

ROOT = Path(__file__).parent.parent.parent
COMPOSE_FILE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "docker" / "Dockerfile"

# ${NAME:-default}: the only form of interpolation that the file uses.
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def load_compose() -> dict[str, Any]:
    """The file, with the variables of somebody who has set none."""
    loaded: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(r"\2", COMPOSE_FILE.read_text()))
    return loaded


class Stage(NamedTuple):
    """One stage of the Dockerfile: what it is built on, and its instructions as (keyword, rest)."""

    name: str
    base: str
    instructions: list[tuple[str, str]]

    def all_of(self, keyword: str) -> list[str]:
        """What follows a keyword, in the order of the file."""
        return [rest for found, rest in self.instructions if found == keyword]


def load_stages() -> dict[str, Stage]:
    """The stages of the Dockerfile by name."""
    stages: dict[str, Stage] = {}
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    for line in text.replace("\\\n", " ").splitlines():
        keyword, _, rest = line.strip().partition(" ")
        if keyword == "FROM":
            base, _, name = rest.partition(" AS ")
            stages[name] = Stage(name, base, [])
        elif keyword and stages:
            stages[next(reversed(stages))].instructions.append((keyword, rest.strip()))
    return stages
