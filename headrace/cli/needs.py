"""What a command imports beside the base of the package, checked before it runs: the message names the extra."""

import importlib.util
from collections.abc import Sequence

# What the engine and its models import.
WORKER_NEEDS = ("torch", "triton", "gguf", "tokenizers", "jinja2", "numpy", "blake3", "llguidance")


def refuse_missing(what: str, modules: Sequence[str], *, extra: str) -> None:
    """SettingsError if a module is not installed that `what` needs and the extra brings."""
    from schemas.errors import SettingsError

    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise SettingsError(f"{what} needs {', '.join(missing)}: pip install 'headrace[{extra}]'")
