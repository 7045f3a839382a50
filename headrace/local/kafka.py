"""The real Apache Kafka as a child process: KRaft, one node, 127.0.0.1, its data in a folder that a restart finds."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType

from aiokafka.errors import KafkaError

from headrace.local.class_archive import ClassArchive
from headrace.local.kafka_install import KafkaInstallation
from headrace.local.kafka_storage import SERVER_PROPERTIES, KafkaStorage
from headrace.local.lock import OwnedLock, claim_folder
from headrace.local.ports import LOOPBACK, PortLease, lease_ports
from headrace.local.process import ManagedProcess
from headrace.local.readiness import port_open, wait_ready
from headrace.local.settings import READY, STOPPED, LocalKafkaSettings, Report, ignore_report
from runtime.kafka import make_admin
from schemas.errors import LocalStackError
from schemas.settings import KafkaSettings

# What a probe of readiness may take; the broker answers in milliseconds once it listens.
PROBE_TIMEOUT_MS = 3_000


class LocalKafka:
    """One broker. It may be started and stopped again and again; the data stays.

    Belongs to the event loop that starts it. If the broker dies by itself, `wait` returns and `start` works again.
    """

    def __init__(self, settings: LocalKafkaSettings, report: Report = ignore_report) -> None:
        self._settings = settings
        self._report = report
        self._storage = KafkaStorage(settings.data_dir)
        self._resources = AsyncExitStack()
        self._process: ManagedProcess | None = None
        self._port = 0
        self.addressed = asyncio.Event()

    async def __aenter__(self) -> "LocalKafka":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def process(self) -> ManagedProcess:
        """The broker's process. Raises LocalStackError if it was not started."""
        if self._process is None:
            raise LocalStackError("the local Kafka is not started: await start()")
        return self._process

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients, as "127.0.0.1:19092": known as soon as `addressed` is set, before the broker answers.

        Raises LocalStackError if it was not started.
        """
        if not self.addressed.is_set():
            raise LocalStackError("the local Kafka is not started: await start()")
        return f"{LOOPBACK}:{self._port}"

    @property
    def server_log(self) -> Path:
        """All that the broker logs; the log of its process holds errors only."""
        return self._settings.data_dir / "logs" / "server.log"

    async def start(self) -> str:
        """Start the broker and return its bootstrap address once it answers.

        Raises LocalStackError if Java, jars, port or folder cannot be had, or if the broker dies or is late.
        """
        if self._process is not None and self._process.returncode is None:
            return self.bootstrap_servers
        await self.stop()
        installation = await KafkaInstallation.find(self._settings, self._report)
        async with AsyncExitStack() as resources:
            lock = await claim_folder(self._settings.data_dir)
            resources.callback(lock.release)
            ports = resources.enter_context(self._lease_ports())
            self._port = ports["kafka"]
            self.addressed.set()
            resources.callback(self.addressed.clear)
            process = await self._launch(installation, ports, lock)
            resources.push_async_callback(self._end, process, installation.archive)
            await wait_ready(process, partial(broker_answers, ports["kafka"]), self._settings.startup_timeout_s)
            self._process, self._resources = process, resources.pop_all()
        self._report(READY)
        return self.bootstrap_servers

    async def stop(self) -> None:
        """Stop it in good order, by force after a grace period; safe when it is not running."""
        if self._process is not None:
            self._report("stopping")
            await self._resources.aclose()
            self._process = None
            self._report(STOPPED)

    async def wait(self) -> int:
        """Wait until the broker ends, by itself or by `stop`; returns its exit code (143 after SIGTERM)."""
        return await self.process.wait()

    def _lease_ports(self) -> PortLease:
        book = self._settings.data_dir / "ports.json"
        return lease_ports(("kafka", "controller"), book=book, fixed={"kafka": self._settings.port})

    async def _launch(self, installation: KafkaInstallation, ports: PortLease, lock: OwnedLock) -> ManagedProcess:
        self._storage.configure(ports)
        if not self._storage.is_formatted:
            self._report("formatting")
            await self._storage.format(installation, self._settings.heap_mb)
        self._report("starting")
        arguments = installation.server(self._settings.heap_mb, SERVER_PROPERTIES)
        return await ManagedProcess.start(self._storage.command("kafka", arguments, kept_fds=(lock.fd,)))

    async def _end(self, process: ManagedProcess, archive: ClassArchive) -> None:
        archive.keep(await process.stop(self._settings.stop_grace_s))


async def broker_answers(port: int) -> bool:
    """Whether the broker lists itself: it does so once its controller has let it serve."""
    if not await port_open(port):
        return False
    servers = f"{LOOPBACK}:{port}"
    admin = make_admin(KafkaSettings(bootstrap_servers=servers, request_timeout_ms=PROBE_TIMEOUT_MS))
    try:
        await admin.start()
        return bool((await admin.describe_cluster())["brokers"])
    except (KafkaError, OSError):
        return False
    finally:
        await admin.close()
