"""Which settings exist, and how one is named: `section.key`, or `models.NAME.key` for one of the served models."""

import difflib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import msgspec

from schemas.settings import ModelSettings, Settings

MODELS = "models"
ENV_PREFIX = "HEADRACE_"
ENV_SEPARATOR = "__"

# The settings file, where no flag names one.
ENV_CONFIG = "HEADRACE_CONFIG"

_NOT_IN_ENV_NAME = re.compile(r"[^A-Z0-9]")


class Setting(NamedTuple):
    """The name of one setting. `model` is set in the section `models` only."""

    section: str
    key: str
    model: str | None = None

    @property
    def name(self) -> str:
        """As people write it."""
        return ".".join(part for part in (self.section, self.model, self.key) if part is not None)

    @property
    def env_name(self) -> str:
        """The environment variable that sets it."""
        parts = [self.section, *([] if self.model is None else [env_part(self.model)]), self.key]
        return ENV_PREFIX + ENV_SEPARATOR.join(part.upper() for part in parts)


def parse_name(name: str) -> Setting | None:
    """The setting of a dotted name; a model's name may hold dots itself. None: it has no such form."""
    section, _, rest = name.strip().partition(".")
    if section == MODELS:
        model, _, key = rest.rpartition(".")
        return Setting(section, key, model) if model and key else None
    return Setting(section, rest) if section and rest and "." not in rest else None


def env_part(model: str) -> str:
    """A model's name as part of an environment variable: capitals, and `_` for all that shells do not allow there."""
    return _NOT_IN_ENV_NAME.sub("_", model.upper())


@cache
def section_types() -> dict[str, type[msgspec.Struct]]:
    """The Struct of each section; that of `models` is of one model."""
    return {
        field.name: ModelSettings if field.name == MODELS else field.type for field in msgspec.structs.fields(Settings)
    }


@cache
def key_types(section: str) -> dict[str, Any]:
    """The keys of a section, with the types of their values."""
    return {field.name: field.type for field in msgspec.structs.fields(section_types()[section])}


def type_of(setting: Setting) -> Any | None:
    """The type of a setting's value; None: there is no such setting."""
    return key_types(setting.section).get(setting.key) if setting.section in section_types() else None


def known_settings() -> Iterator[Setting]:
    """Every setting outside `models`."""
    for section in section_types():
        if section != MODELS:
            yield from (Setting(section, key) for key in key_types(section))


def advice(setting: Setting) -> str:
    """What a person who wrote an unknown name may have meant."""
    if setting.section == MODELS:
        return f"a model has: {', '.join(key_types(MODELS))}"
    names = [known.name for known in known_settings()]
    if found := nearest(setting.name, names):
        return f"did you mean {found}?"
    if setting.section in section_types():
        return f"[{setting.section}] has: {', '.join(key_types(setting.section))}"
    section = nearest(setting.section, section_types())
    return f"did you mean [{section}]?" if section else f"the sections are: {', '.join(section_types())}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like a wrong one, if any is."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)), None)
