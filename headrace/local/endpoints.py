"""Where a running local stack is: one private file in the data folder, by which other commands find it."""

from pathlib import Path

import msgspec

from headrace.local.files import read_state, write_private
from headrace.local.identity import Pid, ProcessIdentity, Ticks
from schemas.codec import Codec
from schemas.errors import LocalStackError
from schemas.settings import StorageSettings

FILE_NAME = "endpoints.json"


class Endpoints(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach Kafka and S3, and which process runs them.

    `bootstrap_servers` and `s3_endpoint` are HOST:PORT. `pid` and `started_ticks` are the
    process that runs them.
    """

    bootstrap_servers: str
    s3_endpoint: str
    access_key: str
    secret_key: str
    bucket: str
    pid: Pid
    started_ticks: Ticks

    def __repr__(self) -> str:
        return (
            f"Endpoints(bootstrap_servers={self.bootstrap_servers!r}, s3_endpoint={self.s3_endpoint!r}, "
            f"access_key=..., secret_key=..., bucket={self.bucket!r}, pid={self.pid})"
        )

    @property
    def storage(self) -> StorageSettings:
        """The S3 part as our clients take it."""
        return StorageSettings(
            endpoint=self.s3_endpoint, bucket=self.bucket, access_key=self.access_key, secret_key=self.secret_key
        )

    @property
    def is_live(self) -> bool:
        """Whether the process that wrote them still runs."""
        return ProcessIdentity(self.pid, self.started_ticks).is_alive


_ENDPOINTS: Codec[Endpoints] = Codec(Endpoints, "json")


def read_endpoints(data_dir: Path) -> Endpoints | None:
    """The stack that runs in a data folder; None if there is none, or if its process is gone.

    Raises LocalStackError if the file is not ours or may not be read.
    """
    path = data_dir / FILE_NAME
    try:
        endpoints = read_state(path, _ENDPOINTS, remedy="stop the stack and delete the file")
    except PermissionError as error:
        raise LocalStackError(f"{path} belongs to another user: choose another data folder") from error
    return endpoints if endpoints is not None and endpoints.is_live else None


def write_endpoints(data_dir: Path, endpoints: Endpoints) -> None:
    """Publish them: mode 0600, whole or not at all."""
    write_private(data_dir / FILE_NAME, msgspec.json.encode(endpoints))


def remove_endpoints(data_dir: Path) -> None:
    """Take them back; safe if they were never written."""
    (data_dir / FILE_NAME).unlink(missing_ok=True)
