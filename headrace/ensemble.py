"""All of headrace on one machine: Kafka and S3 where none are set, the topics, and one process for each role."""

import asyncio
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from headrace.local.endpoints import Endpoints
from headrace.local.files import make_folder
from headrace.local.lock import LOCK_NAME, OwnedLock
from headrace.local.ports import lease_ports
from headrace.local.role import first_of
from headrace.local.settings import READY, LocalStackSettings, OnProgress, ignore_progress
from headrace.local.stack import LocalStack
from headrace.local.supervisor import Role, RoleChange, RoleState, Supervisor
from headrace.settings import local_cache_dir, local_data_dir, use_endpoints
from runtime.config import DEFAULT, LoadedSettings
from runtime.config_names import Setting, parse_name
from runtime.storage import ObjectStore
from runtime.topics import create_missing
from schemas.names import Names
from schemas.settings import SECRET_SETTINGS, Settings
from schemas.topics import registry

ROLES = ("gate", "pipeline", "worker")
TOPICS = "topics"

# The worker reads its weights and compiles nothing, but a cold disk and two cores may take a while.
_READY_WITHIN_S = 180.0

# A static member: after a crash its successor has the partitions at once.
_INSTANCE_ID = "local-worker"


class Ensemble:
    """Starts what is asked for and stops it again, in order: `async with Ensemble(loaded) as ensemble`.

    `overrides` and `config_file` are handed on to the roles as the caller got them. Which of Kafka and S3 is started
    follows from `loaded`: what is set there is used as it is. `on_progress(component, state, seconds)` is called from
    the event loop; the last state of a start is "ready".
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        *,
        roles: Sequence[str] = ROLES,
        config_file: Path | None = None,
        overrides: Sequence[str] = (),
        on_progress: OnProgress = ignore_progress,
    ) -> None:
        self._loaded = loaded
        self._roles = roles
        self._config_file = config_file
        self._overrides = overrides
        self._on_progress = on_progress
        self._resources = AsyncExitStack()
        self._stack: LocalStack | None = None
        self._supervisor: Supervisor | None = None
        self.metrics_ports: dict[str, int] = {}

    @property
    def settings(self) -> Settings:
        """The settings with which all can be reached, once started."""
        return self._loaded.settings

    @property
    def data_dir(self) -> Path:
        """The data folder of what is local."""
        return local_data_dir(self.settings)

    @property
    def has_local_data(self) -> bool:
        """Whether Kafka and S3 were started here, and keep their data in `data_dir`."""
        return self._stack is not None

    @property
    def has_started(self) -> bool:
        """Whether anything was started here at all."""
        return self._stack is not None or self._supervisor is not None

    @property
    def log_dir(self) -> Path:
        """Where the roles log, one file each."""
        return self.data_dir / "logs"

    async def __aenter__(self) -> "Ensemble":
        async with AsyncExitStack() as resources:
            starting = await self._start_stack(resources)
            supervisor = await self._start_roles(resources)
            await starting
            await self._make_topics()
            if supervisor is not None:
                await supervisor.wait_ready(_READY_WITHIN_S)
            self._resources = resources.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._resources.aclose()

    async def watch(self) -> None:
        """Wait until something ends for good, which raises LocalStackError that says why. Cancel it to stop waiting."""
        watched: list[Callable[[], Awaitable[object]]] = [asyncio.Event().wait]
        if self._supervisor is not None:
            watched.append(self._supervisor.wait)
        if self._stack is not None:
            watched.append(self._stack.watch)
        await first_of(*watched)

    async def _start_stack(self, resources: AsyncExitStack) -> Awaitable[object]:
        """Begin to start what is missing. Returns when its addresses are known; what is returned is done when it runs.

        The roles are started meanwhile: they load models, which takes as long as Kafka does.
        """
        settings = self.settings
        if settings.kafka.bootstrap_servers and settings.storage.endpoint:
            return asyncio.sleep(0)
        self._stack = stack = LocalStack(_stack_settings(settings), self._on_progress)
        resources.push_async_callback(stack.stop)
        starting = asyncio.create_task(stack.start())
        resources.push_async_callback(_given_up, starting)
        addressed = asyncio.create_task(stack.addresses())
        await asyncio.wait({starting, addressed}, return_when=asyncio.FIRST_COMPLETED)
        if not addressed.done():
            addressed.cancel()
            await starting  # it has failed, and says why
        self._loaded = use_endpoints(self._loaded, await addressed, source="local stack")
        return starting

    async def _make_topics(self) -> None:
        started_s = time.monotonic()
        self._on_progress(TOPICS, "creating", 0.0)
        topics = self.settings.topics
        names = Names(topics.namespace, topics.generation)
        await create_missing(self.settings.kafka, registry(names, topics, self.settings.models))
        objects = ObjectStore(self.settings.storage)
        try:
            await objects.ensure_bucket()
        finally:
            objects.close()
        self._on_progress(TOPICS, READY, time.monotonic() - started_s)

    async def _start_roles(self, resources: AsyncExitStack) -> Supervisor | None:
        if not self._roles:
            return None
        _make_ours(self.data_dir)
        wanted = {role: getattr(self.settings, role).metrics_port or None for role in self._roles}
        ports = lease_ports(list(wanted), book=self.data_dir / "metrics-ports.json", fixed=wanted)
        resources.enter_context(ports)
        self.metrics_ports = dict(ports.ports)
        started_s = time.monotonic()

        def on_change(change: RoleChange) -> None:
            is_news = change.state in (RoleState.RESTARTING, RoleState.FAILED)
            state = f"{change.state}: {change.detail}" if is_news else str(change.state)
            self._on_progress(change.role, state, time.monotonic() - started_s)

        self._supervisor = Supervisor(
            [self._role(role, ports[role]) for role in self._roles], log_dir=self.log_dir, on_change=on_change
        )
        return await resources.enter_async_context(self._supervisor)

    def _role(self, role: str, port: int) -> Role:
        flags, secrets = _split_secrets(self._overrides)
        config = ["--config", str(self._config_file.absolute())] if self._config_file else []
        flags = [part for flag in flags for part in ("--set", flag)]
        own = {Setting(role, "metrics_port"): str(port)}
        if self._loaded.sources["logging.format"] == DEFAULT:
            own[Setting("logging", "format")] = "console"  # the files are for people, on this machine
        if self._loaded.sources["kafka.startup_timeout_s"] == DEFAULT:
            own[Setting("kafka", "startup_timeout_s")] = str(_READY_WITHIN_S)  # Kafka starts beside it
        if role == "worker" and self.settings.worker.instance_id is None:
            own[Setting(role, "instance_id")] = _INSTANCE_ID
        env = {setting.env_name: value for setting, value in (_endpoints(self.settings) | own).items()}
        return Role(
            name=role,
            command=(*headrace_command(), "serve", role, *config, *flags),
            env=env | secrets,
            ready_port=port,
            stop_grace_s=self.settings.worker.drain_timeout_s + 5.0,
        )


def _make_ours(data_dir: Path) -> None:
    """Make the data folder where no stack of ours has, with the mark by which `--reset` knows it for ours."""
    mark = OwnedLock(make_folder(data_dir) / LOCK_NAME)
    if mark.try_acquire():
        mark.release()


async def _given_up(starting: "asyncio.Task[Endpoints]") -> None:
    """End a start that is still under way. Its failure, if any, was raised where it was awaited."""
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


def headrace_command() -> tuple[str, ...]:
    """How to start our own command line again: by its console script, so that no folder shadows a package."""
    beside = Path(sys.executable).with_name("headrace")
    found = str(beside) if beside.exists() else shutil.which("headrace")
    if found:
        return (found,)
    return (sys.executable, "-P", "-c", "import sys; from headrace.cli.main import main; sys.exit(main())")


def _stack_settings(settings: Settings) -> LocalStackSettings:
    local = settings.local
    return LocalStackSettings(
        data_dir=local_data_dir(settings),
        cache_dir=local_cache_dir(settings),
        bucket=settings.storage.bucket,
        kafka_home=Path(local.kafka_home).expanduser() if local.kafka_home else None,
        heap_mb=local.kafka_heap_mb,
    )


def _endpoints(settings: Settings) -> dict[Setting, str]:
    """Where Kafka and S3 are, for the environment of a role: secrets do not belong on a command line."""
    storage = settings.storage
    values = {
        Setting("kafka", "bootstrap_servers"): settings.kafka.bootstrap_servers,
        Setting("storage", "endpoint"): storage.endpoint,
        Setting("storage", "bucket"): storage.bucket,
        Setting("storage", "access_key"): storage.access_key,
        Setting("storage", "secret_key"): storage.secret_key,
    }
    return {setting: value for setting, value in values.items() if value is not None}


def _split_secrets(overrides: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Overrides that may be seen in a list of processes, and environment variables for the others."""
    flags, secrets = [], {}
    for override in overrides:
        name, _, value = override.partition("=")
        setting = parse_name(name)
        if setting is not None and setting.name in SECRET_SETTINGS:
            secrets[setting.env_name] = value
        else:
            flags.append(override)
    return flags, secrets
