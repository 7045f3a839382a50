"""A broker's data folder: its configuration, written anew at each start, and its storage, formatted once."""

import base64
import os
import shutil
import string
from pathlib import Path

from headrace.local.files import make_folder, read_template
from headrace.local.kafka_install import KafkaInstallation
from headrace.local.ports import PortLease
from headrace.local.process import Command, ManagedProcess
from schemas.errors import LocalStackError

SERVER_PROPERTIES = "server.properties"
FORMAT_PROPERTIES = "format.properties"
DATA = "data"
FORMATTING = "formatting"


class KafkaStorage:
    """The files of one broker. Whoever uses it has claimed the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def is_formatted(self) -> bool:
        """Whether the broker can start in it."""
        return (self.folder / DATA).exists()

    def configure(self, ports: PortLease) -> None:
        """Write all configuration files, with the ports of this start."""
        for name in ("logs", "tmp"):
            make_folder(self.folder / name)
        for name, log_dir in ((SERVER_PROPERTIES, DATA), (FORMAT_PROPERTIES, FORMATTING)):
            values = {"kafka_port": ports["kafka"], "controller_port": ports["controller"], "log_dir": log_dir}
            self._write(name, string.Template(read_template("kafka_server.properties")).substitute(values))
        self._write("log4j2.properties", read_template("kafka_log4j2.properties"))

    async def format(self, installation: KafkaInstallation, heap_mb: int) -> None:
        """Format under another name and rename: a kill leaves the storage whole or absent. Raises LocalStackError."""
        unfinished = self.folder / FORMATTING
        if unfinished.exists():
            shutil.rmtree(unfinished)
        arguments = ("format", "--standalone", "-t", new_cluster_id(), "-c", FORMAT_PROPERTIES)
        process = await ManagedProcess.start(self.command("format", installation.storage_tool(heap_mb, *arguments)))
        try:
            if await process.wait() != 0:
                raise LocalStackError(f"Kafka could not format its storage in {self.folder}:\n{process.log_tail()}")
        finally:
            await process.kill()
        unfinished.rename(self.folder / DATA)

    def command(self, name: str, arguments: tuple[str, ...], kept_fds: tuple[int, ...] = ()) -> Command:
        """A command that runs in the folder and logs to `logs/NAME.log`."""
        log_path = self.folder / "logs" / f"{name}.log"
        return Command(f"Kafka ({name})", arguments, log_path, cwd=self.folder, kept_fds=kept_fds)

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="latin-1")  # as java.util.Properties reads it


def new_cluster_id() -> str:
    """A random id as Kafka makes them: 16 bytes in URL-safe base64, with no dash in front (it would be an option)."""
    while True:
        cluster_id = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id
