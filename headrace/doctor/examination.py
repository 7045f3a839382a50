"""The whole examination: settings first, then everything else side by side."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from headrace.doctor import broker, gpu, machine, settings, storage, toolchain
from headrace.doctor.base import Finding, find_all
from headrace.doctor.situation import Situation
from runtime.config import MASK, load_settings

# In the order in which they are found.
NAMES = (*settings.NAMES, *toolchain.NAMES, *machine.NAMES, *gpu.NAMES, *broker.NAMES, *storage.NAMES)


async def examine(
    config_file: Path | None = None, overrides: Sequence[str] = (), *, is_dev: bool = False
) -> list[Finding]:
    """Look at everything; one finding for each of NAMES, in that order, unless a check that breaks stands for several.

    Never raises, save for cancellation; ends within about half a minute, whatever does not answer. Settings that
    cannot be read are a finding: this machine is then judged by the defaults, broker and storage are left out.
    """
    report = await asyncio.to_thread(settings.read_settings, config_file, overrides)
    situation = Situation(report.loaded or load_settings(None, {}), is_dev)
    here = find_all([*toolchain.checks(situation), *machine.checks(situation), *gpu.checks()])
    if report.loaded is None:
        why = "the settings cannot be read"
        found = [*await here, *broker.nothing(why), *storage.nothing(why)]
    else:
        parts = await asyncio.gather(here, broker.examine_broker(situation), storage.examine_storage(situation))
        found = [finding for part in parts for finding in part]
    return list(without_secrets([report.finding, *found], situation.secrets))


def without_secrets(findings: Iterable[Finding], secrets: Sequence[str]) -> Iterable[Finding]:
    """The findings with every secret masked: a message of a library may quote one."""
    for finding in findings:
        found, remedy = finding.found, finding.remedy
        for secret in sorted(secrets, key=len, reverse=True):
            found = found.replace(secret, MASK)
            remedy = remedy and remedy.replace(secret, MASK)
        yield msgspec.structs.replace(finding, found=found, remedy=remedy)
