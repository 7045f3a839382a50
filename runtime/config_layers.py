"""The layers that settings come from, each read into entries that still know where they were written.

Environment: `HEADRACE_SECTION__KEY=value`. For a model, `HEADRACE_MODELS__NAME__KEY=value`, where NAME is the model's
name in capitals with `_` for every other character than letters and digits (`SMOLLM2_135M_INSTRUCT`); a NAME that is no
known model's defines a new one, in small letters. An empty value unsets a setting that may be unset.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs

from runtime.config_names import (
    ENV_CONFIG,
    ENV_PREFIX,
    ENV_SEPARATOR,
    MODELS,
    Setting,
    env_part,
    known_settings,
    parse_name,
)
from schemas.errors import SettingsError

FILE_NAME = "headrace.toml"


class Entry(NamedTuple):
    """One value as it was written. `is_text`: it is a string that stands for a value of the setting's type."""

    setting: Setting
    value: Any
    source: str
    is_text: bool = False


def find_file(config_file: Path | None, env: Mapping[str, str]) -> Path | None:
    """The settings file: the one asked for, else HEADRACE_CONFIG's, else ./headrace.toml, else the user's own.

    Raises:
        SettingsError: a file was named and is not there.
    """
    named = config_file or (Path(env[ENV_CONFIG]) if env.get(ENV_CONFIG) else None)
    if named is not None:
        if not named.is_file():
            origin = "--config" if config_file else ENV_CONFIG
            raise SettingsError(f"there is no settings file {named} (from {origin})")
        return named
    usual = (Path(FILE_NAME), platformdirs.user_config_path("headrace") / FILE_NAME)
    return next((path for path in usual if path.is_file()), None)


def file_entries(path: Path) -> Iterator[Entry]:
    """The values of a TOML file."""
    source = f"file {path}"
    for section, table in _parse(path).items():
        for key, value in _table(table, section, source).items():
            if section == MODELS:
                model = _table(value, f"{MODELS}.{key}", source)
                # A table without keys still names the model: that keeps a default one beside others.
                yield Entry(Setting(MODELS, "", key), None, source)
                yield from (Entry(Setting(MODELS, field, key), given, source) for field, given in model.items())
            else:
                yield Entry(Setting(section, key), value, source)


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"the settings file {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # besides its own: no UTF-8, numbers of too many digits, depth
        raise SettingsError(f"the settings file {path} is not valid TOML: {error}") from error


def _table(value: Any, name: str, source: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError(f"{name!r} in {source} is not a section: write `[{name}]`, then `key = value` lines")
    return value


def env_entries(env: Mapping[str, str], known_models: Iterable[str]) -> Iterator[Entry]:
    """The values of the environment. Other variables that begin alike (Kubernetes makes some) are left alone."""
    for variable in sorted(env):
        if variable.startswith(ENV_PREFIX) and ENV_SEPARATOR in variable:
            yield _env_entry(variable, env[variable], known_models)
        elif variable.startswith(ENV_PREFIX):
            _refuse_single_underscore(variable)


def _env_entry(variable: str, value: str, known_models: Iterable[str]) -> Entry:
    section, *middle, key = variable.removeprefix(ENV_PREFIX).split(ENV_SEPARATOR)
    source = f"environment {variable}"
    if section == MODELS.upper() and middle:
        model = _model_of(ENV_SEPARATOR.join(middle), known_models, source)
        return Entry(Setting(MODELS, key.lower(), model), value, source, is_text=True)
    key = ENV_SEPARATOR.join([*middle, key])
    return Entry(Setting(section.lower(), key.lower()), value, source, is_text=True)


def _refuse_single_underscore(variable: str) -> None:
    for setting in known_settings():
        if variable == setting.env_name.replace(ENV_SEPARATOR, "_"):
            raise SettingsError(f"environment {variable} sets nothing; did you mean {setting.env_name}?")


def _model_of(part: str, known_models: Iterable[str], source: str) -> str:
    found = sorted(model for model in known_models if env_part(model) == env_part(part))
    if len(found) > 1:
        raise SettingsError(f"{source} may mean each of {', '.join(found)}: use a file or --set, where names are exact")
    return found[0] if found else part.lower()


def flag_entries(overrides: Sequence[str]) -> Iterator[Entry]:
    """The values of `--set section.key=value`."""
    for override in overrides:
        name, separator, value = override.partition("=")
        setting = parse_name(name)
        if not separator or setting is None:
            raise SettingsError(f"--set {name}: write section.key=value, as in --set kafka.bootstrap_servers=host:9092")
        yield Entry(setting, value, f"--set {name}", is_text=True)
