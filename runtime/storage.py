"""Object storage on the minio SDK (any S3), off the event loop. A missing object and a storage fault are two errors."""

import asyncio
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import urllib3
from minio import Minio
from minio.error import InvalidResponseError, S3Error, ServerError

from schemas.errors import ObjectMissing, SettingsError, StorageUnavailable
from schemas.settings import StorageSettings

T = TypeVar("T")

_NUM_THREADS = 8
_NUM_RETRIES = 2
_MISSING_CODES = frozenset({"NoSuchKey", "NoSuchObject"})
_TAKEN_CODE = "PreconditionFailed"


class ObjectStore:
    """One bucket. Every call may raise StorageUnavailable (retriable)."""

    def __init__(self, settings: StorageSettings) -> None:
        if not settings.endpoint:
            raise SettingsError(
                "no object storage: set storage.endpoint (or HEADRACE_STORAGE__ENDPOINT), or start a local one with "
                "`headrace up`"
            )
        self._bucket = settings.bucket
        self._region = settings.region
        self._client = _client(settings, settings.endpoint)
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="storage")

    async def ensure_bucket(self) -> None:
        """Make the bucket where there is none."""

        def make() -> None:
            if not self._client.bucket_exists(self._bucket):
                self._client.make_bucket(self._bucket, location=self._region)

        await self._run(make)

    async def has_bucket(self) -> bool:
        """Whether the bucket is there."""
        return await self._run(lambda: self._client.bucket_exists(self._bucket))

    async def put(self, key: str, data: bytes, *, content_type: str = "application/json") -> None:
        """Write one object whole. It is durable when this returns."""
        await self._run(
            lambda: self._client.put_object(self._bucket, key, io.BytesIO(data), len(data), content_type=content_type)
        )

    async def put_new(self, key: str, data: bytes, *, content_type: str = "application/json") -> bool:
        """Write one object where there is none; returns whether it was written (If-None-Match, RFC 9110 13.1.2).

        False may also mean that an earlier try of this call got through and its answer was lost: where that matters,
        read the object.
        """

        def put() -> bool:
            try:
                # The SDK's put_object takes no conditions (minio 7.2.20): this is the one place that goes below it.
                self._client._execute(
                    "PUT",
                    self._bucket,
                    key,
                    body=data,
                    headers={"Content-Type": content_type, "If-None-Match": "*"},
                    no_body_trace=True,
                )
            except S3Error as error:
                if error.code == _TAKEN_CODE:
                    return False
                raise
            return True

        return await self._run(put)

    async def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        """Read one object whole; of one that is larger than `max_bytes`, one byte more than that.

        Raises:
            ObjectMissing: there is none of this name.
        """

        def read() -> bytes:
            response = self._client.get_object(self._bucket, key)
            try:
                return response.read() if max_bytes is None else _read_at_most(response, max_bytes + 1)
            finally:
                response.close()
                response.release_conn()

        return await self._run(read)

    async def keys(self, prefix: str) -> list[str]:
        """The keys below a prefix, sorted."""
        found = await self._run(
            lambda: [item.object_name for item in self._client.list_objects(self._bucket, prefix, recursive=True)]
        )
        return sorted(key for key in found if key is not None)

    async def folders(self, prefix: str) -> list[str]:
        """What lies directly below a prefix and has more below it, sorted; each ends with a slash, as `prefix` does."""
        found = await self._run(
            lambda: [item.object_name for item in self._client.list_objects(self._bucket, prefix) if item.is_dir]
        )
        return sorted(folder for folder in found if folder is not None)

    async def delete(self, key: str) -> None:
        """Remove one object; one that is not there is no error."""
        await self._run(lambda: self._client.remove_object(self._bucket, key))

    def close(self) -> None:
        """Let the threads go; calls under way finish."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except S3Error as error:
            if error.code in _MISSING_CODES:
                raise ObjectMissing(f"no object {error.object_name!r} in bucket {self._bucket!r}") from error
            raise StorageUnavailable(f"object storage refused the call: {error.code}: {error.message}") from error
        except (urllib3.exceptions.HTTPError, InvalidResponseError, ServerError, OSError) as error:
            raise StorageUnavailable(f"object storage does not answer: {error}") from error


def _client(settings: StorageSettings, endpoint: str) -> Minio:
    try:
        return Minio(
            endpoint,
            access_key=settings.access_key,
            secret_key=settings.secret_key,
            secure=settings.secure,
            region=settings.region,
            http_client=urllib3.PoolManager(
                timeout=urllib3.Timeout(settings.timeout_s),
                maxsize=_NUM_THREADS,
                retries=urllib3.Retry(total=_NUM_RETRIES, backoff_factor=0.2, status_forcelist=[500, 502, 503, 504]),
            ),
        )
    except ValueError as error:
        raise SettingsError(f"storage.endpoint is {endpoint!r}: {error}; write HOST:PORT") from error


def _read_at_most(response: urllib3.BaseHTTPResponse, num_bytes: int) -> bytes:
    parts: list[bytes] = []
    while num_bytes > 0 and (part := response.read(num_bytes)):
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)
