"""Ports on 127.0.0.1 that are free, stay the same from start to start, and are not given out twice at once."""

import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from headrace.local.files import read_state, write_private
from schemas.codec import Codec
from schemas.errors import LocalStackError
from schemas.settings import Port

LOOPBACK = "127.0.0.1"

# SeaweedFS derives each server's gRPC port from its HTTP port.
GRPC_PORT_OFFSET = 10_000

# Below this are the ports that people know by heart (3000, 8000, 9092), and that their other programs want.
LOWEST_PORT = 10_240

# Where the kernel starts to pick ports for outgoing connections, if it does not say: the default of Linux.
DEFAULT_EPHEMERAL_START = 32_768
MAX_TRIES = 200

_BOOK: Codec[dict[str, int]] = Codec(dict[str, Port], "json")


class PortLease:
    """Named ports that no other stack is given while the lease is held.

    A port is free if it can be bound, but the server binds it only later. In between, and for as long as the lease
    lives, an abstract Unix socket named after the port stands for it: the kernel keeps those per network namespace, as
    it does ports, and drops them when we die.
    """

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self._markers: list[socket.socket] = []

    def __getitem__(self, name: str) -> int:
        return self.ports[name]

    def __enter__(self) -> "PortLease":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def take(self, name: str, candidates: Iterator[int], *, with_grpc: bool) -> None:
        """Give `name` the first candidate that is free. Raises LocalStackError if none is."""
        tried = []
        for port in candidates:
            needed = (port, port + GRPC_PORT_OFFSET) if with_grpc else (port,)
            if self._reserve(needed):
                self.ports[name] = port
                return
            tried.append(port)
        raise LocalStackError(f"no free port for {name} on {LOOPBACK}: tried {tried[:5]}; choose another or none")

    def release(self) -> None:
        """Let others have the ports; safe to call twice."""
        while self._markers:
            self._markers.pop().close()

    def _reserve(self, ports: Sequence[int]) -> bool:
        markers = [marker for port in ports if (marker := _mark(port)) is not None]
        if len(markers) == len(ports) and all(map(_can_bind, ports)):
            self._markers += markers
            return True
        for marker in markers:
            marker.close()
        return False


def lease_ports(
    names: Sequence[str], *, book: Path, fixed: Mapping[str, int | None] | None = None, with_grpc: bool = False
) -> PortLease:
    """Lease a port for each name: the fixed one, else the one in `book`, else a new one, which is written there.

    Raises LocalStackError if a fixed port is taken, or if `book` is not readable.
    """
    remembered = _read_book(book)
    lease = PortLease()
    try:
        for name in names:
            chosen = (fixed or {}).get(name)
            candidates = (
                iter([chosen]) if chosen is not None else _candidates(remembered.get(name), with_grpc=with_grpc)
            )
            lease.take(name, candidates, with_grpc=with_grpc)
    except BaseException:
        lease.release()
        raise
    if lease.ports != remembered:
        write_private(book, msgspec.json.encode(lease.ports))
    return lease


def _read_book(book: Path) -> dict[str, int]:
    return read_state(book, _BOOK, remedy="delete it, new ports are chosen then") or {}


def _candidates(remembered: int | None, *, with_grpc: bool) -> Iterator[int]:
    if remembered is not None:
        yield remembered
    # Outside the ephemeral range: there, any outgoing connection may take a port of a stack that is stopped.
    end = _ephemeral_start() - (GRPC_PORT_OFFSET if with_grpc else 0)
    if end <= LOWEST_PORT:
        end = DEFAULT_EPHEMERAL_START - GRPC_PORT_OFFSET
    for _ in range(MAX_TRIES):
        yield random.randrange(LOWEST_PORT, end)  # noqa: S311 - spreads stacks over ports, guards no secret


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except FileNotFoundError:
        return DEFAULT_EPHEMERAL_START


def _mark(port: int) -> socket.socket | None:
    marker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        marker.bind(f"\0headrace/port/{port}")
    except OSError:
        marker.close()
        return None
    return marker


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do it: connections of an earlier run in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
