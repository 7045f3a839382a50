"""A file lock that knows its owner: one process at a time in a data folder, and a refusal that names the other."""

import asyncio
import fcntl
import os
from pathlib import Path

import msgspec

from headrace.local.files import make_folder
from headrace.local.identity import ProcessIdentity
from schemas.codec import Codec
from schemas.errors import LocalStackError, MalformedRecord

LOCK_NAME = "owner.lock"
_OWNER: Codec[ProcessIdentity] = Codec(ProcessIdentity, "json")
POLL_S = 0.05

# After its owner was killed, a folder's lock is still held by the owner's children until their guards have ended them.
ORPHANS_END_WITHIN_S = 10.0


class OwnedLock:
    """An exclusive flock(2) on a file that holds the owner's identity.

    The kernel drops it when the last copy of its descriptor is closed, however the holders die. `fd` may be given to
    child processes: then the lock is held until they, too, are gone. The file stays: removing it would let two in.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def fd(self) -> int:
        """The descriptor that holds the lock. Raises LocalStackError if it is not held."""
        if self._fd is None:
            raise LocalStackError(f"the lock {self.path} is not held: acquire it first")
        return self._fd

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it; True if it is ours now."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, msgspec.json.encode(ProcessIdentity.current()), 0)
        except BlockingIOError:
            os.close(fd)
            return False
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def owner(self) -> ProcessIdentity | None:
        """Who wrote itself into the file last; it need not live any more. None if nobody did, or is just doing so."""
        try:
            return _OWNER.decode(self.path.read_bytes())
        except (FileNotFoundError, MalformedRecord):
            return None

    def release(self) -> None:
        """Give our copy of the descriptor up; safe to call twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


async def claim_folder(folder: Path) -> OwnedLock:
    """Become the only user of a data folder, which is created if need be.

    Waits for leftovers of an owner that was killed; for one that lives it raises LocalStackError with its pid.
    """
    lock = OwnedLock(make_folder(folder) / LOCK_NAME)
    deadline = asyncio.get_running_loop().time() + ORPHANS_END_WITHIN_S
    while not lock.try_acquire():
        owner = lock.owner()
        if owner is not None and owner.is_alive:
            raise LocalStackError(
                f"the data folder {folder} is in use by process {owner.pid}; stop that process or choose another folder"
            )
        if asyncio.get_running_loop().time() > deadline:
            raise LocalStackError(
                f"the data folder {folder} is still held by children of a process that is gone; "
                f"find them with `fuser {lock.path}` and end them"
            )
        await asyncio.sleep(POLL_S)
    return lock
