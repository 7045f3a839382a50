"""What `headrace demo` does: start what is missing, two turns of one session, one table, stop."""

import asyncio
import secrets
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from headrace.cli.demo import MAX_TOKENS, TURNS
from headrace.cli.progress import StartProgress
from headrace.cli.speaker import Speaker
from headrace.cli.tables import topic_table
from headrace.client import Client
from headrace.client.diagnosis import missing_roles
from headrace.ensemble import ROLES, Ensemble
from headrace.local.role import first_of
from headrace.settings import local_data_dir
from headrace.topic_report import TopicReport, report_topics
from runtime.config import LoadedSettings
from runtime.storage import ObjectStore
from schemas.envelope import DEFAULT_TENANT
from schemas.errors import HeadraceError
from schemas.names import Names
from schemas.results import Result
from schemas.settings import Settings

# A `headrace up` that was started a moment ago is still loading its model.
_ROLES_APPEAR_WITHIN_S = 60.0

# The gate writes the state of a session after the client has the result.
_SETTLED_WITHIN_S = 20.0
_POLL_S = 0.2


class StoredObject(NamedTuple):
    """An object in the bucket."""

    key: str
    num_bytes: int


class DemoShow:
    """One run of the demo."""

    def __init__(
        self, console: Console, loaded: LoadedSettings, config_file: Path | None, overrides: Sequence[str]
    ) -> None:
        self._console = console
        self._loaded = loaded
        self._config_file = config_file
        self._overrides = overrides
        self._session = f"demo-{secrets.token_hex(4)}"
        self._prefix = _names(loaded.settings).object_key(f"sessions/{DEFAULT_TENANT}/{self._session}/")

    async def run(self) -> None:
        """The whole show. Raises HeadraceError where something does not work."""
        self._console.print(Rule("headrace: a chat through Kafka", align="left", style="cyan"))
        progress = StartProgress(self._console)
        async with AsyncExitStack() as resources:
            with progress:
                ensemble = await resources.enter_async_context(await self._ensemble(progress))
            # What was started may end for good: that ends the show, instead of a long wait for an answer.
            await first_of(partial(self._talk, ensemble.settings), ensemble.watch)
            if ensemble.has_started:
                self._console.print("\nstopping what was started ...", style="dim")
        self._say_what_remains(ensemble)

    async def _talk(self, settings: Settings) -> None:
        self._say_where(settings)
        async with Client(settings) as client:
            for number, text in enumerate(TURNS, start=1):
                await self._turn(client, number, text)
        await self._show_where_it_went(settings)

    async def _ensemble(self, progress: StartProgress) -> Ensemble:
        return Ensemble(
            self._loaded,
            roles=await self._missing_roles(),
            config_file=self._config_file,
            overrides=self._overrides,
            on_progress=progress.update,
        )

    async def _missing_roles(self) -> Sequence[str]:
        settings = self._loaded.settings
        if not settings.kafka.bootstrap_servers:
            return ROLES
        names = _names(settings)
        is_local = self._loaded.sources["kafka.bootstrap_servers"].startswith("local stack")
        deadline_s = asyncio.get_running_loop().time() + (_ROLES_APPEAR_WITHIN_S if is_local else 0)
        while missing := await missing_roles(settings.kafka, names, settings.worker.model):
            if asyncio.get_running_loop().time() >= deadline_s:
                break
            await asyncio.sleep(_POLL_S)
        return missing

    def _say_what_remains(self, ensemble: Ensemble) -> None:
        text = f"All is stopped. The data is kept in {ensemble.data_dir}; --reset deletes it."
        if not ensemble.has_local_data:
            text = "What was running before runs on."
        self._console.print(text, style="dim", soft_wrap=True)

    def _say_where(self, settings: Settings) -> None:
        self._console.print(
            f"\nsession {self._session} · model {settings.worker.model} · Kafka {settings.kafka.bootstrap_servers}",
            style="dim",
            soft_wrap=True,
        )

    async def _turn(self, client: Client, number: int, text: str) -> None:
        self._console.print(Text.assemble((f"\n{number}. you       ", "bold cyan"), text))
        self._console.print(Text("   headrace  ", style="bold green"), end="")
        sys.stdout.flush()
        speaker = Speaker(sys.stdout)
        answer = client.stream(text, session=self._session, max_tokens=MAX_TOKENS, temperature=0.0)
        try:
            async for delta in answer:
                speaker.say(delta)
        finally:
            speaker.end()
        for line in (speaker.figures, *_from_before(answer.result)):
            self._console.print(f"   {line}", style="dim")

    async def _show_where_it_went(self, settings: Settings) -> None:
        reports, objects = await self._settled(settings)
        used = [report for report in reports if any(report.end_offsets)]
        self._console.print(Text("\nWhere it all went", style="bold"))
        self._console.print(topic_table(used))
        self._console.print(f" s3://{settings.storage.bucket}/{self._prefix}", soft_wrap=True)
        for item in objects:
            self._console.print(f"   {item.key.removeprefix(self._prefix)}  {item.num_bytes:>9,} bytes", soft_wrap=True)
        self._console.print()
        self._console.print(_summary(reports, used, objects), style="dim")
        if len(objects) < len(TURNS) or any(report.pending for report in reports):
            raise HeadraceError(
                f"not all of it came to an end within {_SETTLED_WITHIN_S:g} s; the roles' logs say why "
                f"(in {local_data_dir(settings) / 'logs'})"
            )

    async def _settled(self, settings: Settings) -> tuple[list[TopicReport], list[StoredObject]]:
        """Topics and objects when nothing is pending any more, or as they are if that takes too long."""
        deadline_s = asyncio.get_running_loop().time() + _SETTLED_WITHIN_S
        while True:
            objects = await self._objects(settings)
            reports = await report_topics(settings)
            is_settled = len(objects) >= len(TURNS) and not any(report.pending for report in reports)
            if is_settled or asyncio.get_running_loop().time() >= deadline_s:
                return reports, objects
            await asyncio.sleep(_POLL_S)

    async def _objects(self, settings: Settings) -> list[StoredObject]:
        store = ObjectStore(settings.storage)
        try:
            keys = await store.keys(self._prefix)
            return [StoredObject(key, len(await store.get(key))) for key in keys]
        finally:
            store.close()


def _names(settings: Settings) -> Names:
    return Names(settings.topics.namespace, settings.topics.generation)


def _from_before(result: Result | None) -> list[str]:
    if result is None or not result.num_base_tokens:
        return []
    return [f"{result.num_base_tokens} of {result.usage.prompt_tokens} prompt tokens are the first turn's"]


def _summary(reports: Sequence[TopicReport], used: Sequence[TopicReport], objects: Sequence[StoredObject]) -> str:
    pending = sum(report.pending or 0 for report in reports)
    work = f"{pending} records are still pending" if pending else "Nothing is pending"
    empty = len(reports) - len(used)
    return (
        f"{work}. {empty} more topics are empty. {len(objects)} objects hold the session.\n"
        "End offsets count the markers of transactions too."
    )
