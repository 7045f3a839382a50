"""The direction of imports, held for every file: arrows only ever point down the list of folders."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Each folder, and which of ours it may import. The order is the architecture: see docs/ARCHITECTURE.md.
ALLOWED: dict[str, set[str]] = {
    "schemas": set(),
    "kernels": set(),
    "models": {"schemas"},
    "engine": {"schemas", "kernels", "models"},
    "runtime": {"schemas"},
    "pipeline": {"schemas", "models", "runtime"},
    "consumers": {"schemas", "models", "engine", "runtime"},
    "headrace": {"schemas", "kernels", "models", "engine", "runtime", "pipeline", "consumers"},
}

# Heavy packages, and the only folders that may import them.
HEAVY: dict[str, set[str]] = {
    "torch": {"kernels", "engine"},
    "triton": {"kernels"},
    "faust": {"pipeline"},
    "mode": {"pipeline"},
    "aiokafka": {"runtime", "pipeline", "consumers", "headrace"},
    "minio": {"runtime", "headrace"},
}

FILES = sorted(path for folder in ALLOWED for path in (ROOT / folder).rglob("*.py"))


def imported_packages(path: Path) -> set[str]:
    """Top-level packages that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_folders_below_its_own(path: Path) -> None:
    folder = path.relative_to(ROOT).parts[0]
    ours = imported_packages(path) & set(ALLOWED) - {folder}
    assert ours <= ALLOWED[folder], f"{folder} must not import {ours - ALLOWED[folder]}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_heavy_package_is_imported_only_where_it_belongs(path: Path) -> None:
    folder = path.relative_to(ROOT).parts[0]
    misplaced = {name for name in imported_packages(path) & set(HEAVY) if folder not in HEAVY[name]}
    assert not misplaced, f"{folder} must not import {misplaced}"


def test_the_list_of_allowed_imports_has_no_cycle() -> None:
    order = list(ALLOWED)
    for folder, below in ALLOWED.items():
        assert all(order.index(name) < order.index(folder) for name in below)
