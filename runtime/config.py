"""Where settings come from: defaults, then a TOML file, then the environment, then flags. The last one wins.

Nothing is guessed: an unknown name is refused with the nearest known one, a wrong value with the place it stands in,
and every value remembers its source. The forms of the layers are described in `config_layers`.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from runtime.config_layers import Entry, env_entries, file_entries, find_file, flag_entries
from runtime.config_names import MODELS, Setting, advice, key_types, parse_name, section_types, type_of
from schemas.errors import SettingsError
from schemas.names import Names, check_model_name
from schemas.settings import DEFAULT_MODEL, SECRET_SETTINGS, Settings

DEFAULT = "default"
MASK = "********"


class LoadedSettings(NamedTuple):
    """The settings, and for each name ("kafka.bootstrap_servers") where its value came from."""

    settings: Settings
    sources: dict[str, str]


class SettingLine(NamedTuple):
    """One setting for people to read: secrets are masked."""

    name: str
    value: Any
    source: str


class _Given(NamedTuple):
    value: Any
    source: str


def load_settings(config_file: Path | None, env: Mapping[str, str], overrides: Sequence[str] = ()) -> LoadedSettings:
    """Read all layers. `overrides` are texts of the form `section.key=value`.

    The default model is served as long as no other is defined; who defines others and wants it too names it as well.

    Raises:
        SettingsError: a name is unknown, a value has a wrong type, two settings contradict, or the file is no TOML.
    """
    path = find_file(config_file, env)
    entries = list(file_entries(path)) if path else []
    entries += env_entries(env, {DEFAULT_MODEL, *(entry.setting.model for entry in entries if entry.setting.model)})
    entries += flag_entries(overrides)
    return _build(_checked(entries))


def fill_unset(loaded: LoadedSettings, values: Mapping[str, Any], source: str) -> LoadedSettings:
    """Give the settings that nobody has set (still None by default) a value: the layer below the defaults.

    `values` are by name ("kafka.bootstrap_servers").
    """
    changes: dict[str, dict[str, Any]] = {}
    sources = dict(loaded.sources)
    for name, value in values.items():
        setting = parse_name(name)
        if setting is not None and sources.get(name) == DEFAULT:
            changes.setdefault(setting.section, {})[setting.key] = value
            sources[name] = source
    sections = {
        section: msgspec.structs.replace(getattr(loaded.settings, section), **changed)
        for section, changed in changes.items()
    }
    return LoadedSettings(msgspec.structs.replace(loaded.settings, **sections), sources)


def setting_lines(loaded: LoadedSettings) -> list[SettingLine]:
    """Every setting with its source, secrets masked, in the order of the sections."""
    return [
        SettingLine(name, _masked(name, _value(loaded.settings, name)), source)
        for name, source in loaded.sources.items()
    ]


def _masked(name: str, value: Any) -> Any:
    return MASK if name in SECRET_SETTINGS and value is not None else value


def _value(settings: Settings, name: str) -> Any:
    setting = parse_name(name)
    if setting is None:
        raise SettingsError(f"{name!r} is no setting's name")
    section = getattr(settings, setting.section)
    return getattr(section[setting.model] if setting.model else section, setting.key)


def _checked(entries: Iterable[Entry]) -> dict[Setting, _Given]:
    """The newest value of each setting, in its type."""
    return {entry.setting: _Given(_convert(entry), entry.source) for entry in entries}


def _convert(entry: Entry) -> Any:
    setting = entry.setting
    if setting.section == MODELS and not setting.key:
        return None
    wanted = type_of(setting)
    if wanted is None:
        raise SettingsError(f"unknown setting {setting.name} ({entry.source}); {advice(setting)}")
    try:
        if entry.is_text and entry.value == "" and _may_be_unset(wanted):
            return None
        return msgspec.convert(entry.value, type=wanted, strict=not entry.is_text)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{setting.name} ({entry.source}): {str(error).replace('`', '')}") from error


def _may_be_unset(wanted: Any) -> bool:
    try:
        msgspec.convert(None, type=wanted)
    except msgspec.ValidationError:
        return False
    return True


def _build(given: dict[Setting, _Given]) -> LoadedSettings:
    sections: dict[str, Any] = {}
    for section, struct in section_types().items():
        if section != MODELS:
            sections[section] = struct(**_of(given, section, None))
    settings = Settings(**sections, models=_models(given))
    return _consistent(LoadedSettings(settings, _sources(settings, given)), given)


def _of(given: dict[Setting, _Given], section: str, model: str | None) -> dict[str, Any]:
    return {
        setting.key: value
        for setting, (value, _) in given.items()
        if setting.section == section and setting.model == model and setting.key
    }


def _models(given: dict[Setting, _Given]) -> dict[str, Any]:
    defaults = Settings().models
    named = {setting.model: source for setting, (_, source) in given.items() if setting.model is not None}
    models = {}
    for model, source in named.items():
        _check_name(model, source)
        fields = {**(msgspec.structs.asdict(defaults[model]) if model in defaults else {}), **_of(given, MODELS, model)}
        if "path" not in fields:
            raise SettingsError(f"models.{model} ({source}) has no `path`: a model file, or wheel:PACKAGE")
        models[model] = section_types()[MODELS](**fields)
    return models or dict(defaults)


def _check_name(model: str, source: str) -> None:
    try:
        check_model_name(model)
    except SettingsError as error:
        raise SettingsError(f"{source}: {error.message}") from error


def _sources(settings: Settings, given: dict[Setting, _Given]) -> dict[str, str]:
    names = []
    for section in section_types():
        models = settings.models if section == MODELS else (None,)
        names += [Setting(section, key, model) for model in models for key in key_types(section)]
    return {setting.name: given[setting].source if setting in given else DEFAULT for setting in names}


def _consistent(loaded: LoadedSettings, given: dict[Setting, _Given]) -> LoadedSettings:
    """Check settings against each other; a worker's model that nobody chose is the first one that is served."""
    settings, sources = loaded
    Names(settings.topics.namespace, settings.topics.generation)
    _check_topics(settings)
    chosen = given.get(Setting("worker", "model"))
    if settings.worker.model in settings.models:
        return loaded
    if chosen is not None:
        served = ", ".join(settings.models)
        raise SettingsError(
            f"worker.model ({chosen.source}) is {chosen.value!r}, which [models] lacks; it has: {served}"
        )
    first = next(iter(settings.models))
    worker = msgspec.structs.replace(settings.worker, model=first)
    return LoadedSettings(
        msgspec.structs.replace(settings, worker=worker), {**sources, "worker.model": "the first of [models]"}
    )


def _check_topics(settings: Settings) -> None:
    topics = settings.topics
    if topics.min_insync_replicas > topics.replication_factor:
        raise SettingsError(
            f"topics.min_insync_replicas ({topics.min_insync_replicas}) is more than topics.replication_factor "
            f"({topics.replication_factor}): nothing could be written"
        )
