"""Which process is meant: a pid alone may be another process tomorrow, pid and start time together are not."""

import os
from pathlib import Path
from typing import Annotated

import msgspec

from schemas.errors import LocalStackError

# proc(5): pid_max is at most 2**22; starttime has 64 bits.
Pid = Annotated[int, msgspec.Meta(gt=0, le=2**22)]
Ticks = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class ProcessIdentity(msgspec.Struct, frozen=True):
    """A process of this boot: its pid and `starttime` of proc(5), in clock ticks since boot."""

    pid: Pid
    started_ticks: Ticks

    @classmethod
    def current(cls) -> "ProcessIdentity":
        """The calling process."""
        identity = cls.of(os.getpid())
        if identity is None:
            raise LocalStackError("/proc does not show the calling process: mount /proc")
        return identity

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """The process that has this pid now; None if there is none, or only a zombie."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # "PID (name) state ...": the name may hold spaces and parentheses. starttime is field 22, state field 3.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else cls(pid=pid, started_ticks=int(fields[19]))

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessIdentity.of(self.pid) == self
