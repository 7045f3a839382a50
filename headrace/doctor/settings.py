"""The settings: whether they can be read, and what they name outside of themselves."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.doctor.base import Finding, failed, ok, warning
from headrace.settings import resolve_settings
from runtime.config import DEFAULT, LoadedSettings
from schemas.errors import LocalStackError, SettingsError
from schemas.settings import LOOPBACK

SETTINGS = "settings"
NAMES = (SETTINGS,)

_LOCAL_HOSTS = (LOOPBACK, "localhost", "::1")


class SettingsReport(NamedTuple):
    """The settings (None where they cannot be read), and what was found about them."""

    loaded: LoadedSettings | None
    finding: Finding


def read_settings(config_file: Path | None, overrides: Sequence[str]) -> SettingsReport:
    """Load all layers, with the running local stack where no broker is set. Never raises."""
    try:
        loaded = resolve_settings(config_file, overrides=overrides)
    except (SettingsError, LocalStackError) as error:
        remedy = "correct it; the layers are defaults, the TOML file, HEADRACE_SECTION__KEY, --set SECTION.KEY=VALUE"
        return SettingsReport(None, failed(SETTINGS, error.message, remedy))
    return SettingsReport(loaded, judge(loaded))


def judge(loaded: LoadedSettings) -> Finding:
    """Whether files that are named exist, and no password travels for all to read."""
    kafka, storage = loaded.settings.kafka, loaded.settings.storage
    if kafka.ssl_cafile and not Path(kafka.ssl_cafile).is_file():
        return failed(SETTINGS, f"kafka.ssl_cafile: there is no file {kafka.ssl_cafile}", "correct kafka.ssl_cafile")
    if kafka.security_protocol.startswith("SASL") and not (kafka.sasl_username and kafka.sasl_password):
        found = f"kafka.security_protocol is {kafka.security_protocol}, and no user or password is set"
        return failed(SETTINGS, found, "set kafka.sasl_username and HEADRACE_KAFKA__SASL_PASSWORD")
    if kafka.security_protocol == "SASL_PLAINTEXT" and kafka.sasl_mechanism == "PLAIN":
        found = "the password of kafka.sasl_username travels unencrypted"
        return warning(SETTINGS, found, "set kafka.security_protocol=SASL_SSL, or a SCRAM mechanism")
    if storage.endpoint and not storage.secure and storage.endpoint.rpartition(":")[0] not in _LOCAL_HOSTS:
        return warning(SETTINGS, "sessions travel to object storage unencrypted", "set storage.secure=true")
    return ok(SETTINGS, _told(loaded))


def _told(loaded: LoadedSettings) -> str:
    given = sorted({source for source in loaded.sources.values() if source != DEFAULT})
    return f"read from {', '.join(given)}" if given else "all are the defaults"
