"""Ports are free when they are given, the same from start to start, and never given to two stacks at once."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.local import ports
from headrace.local.ports import GRPC_PORT_OFFSET, LOOPBACK, LOWEST_PORT, PortLease, lease_ports
from schemas.errors import LocalStackError
from tests.local.processes import end, first_line, python

LEASER = """
import sys
from pathlib import Path
from headrace.local.ports import lease_ports
lease = lease_ports(("a",), book=Path(sys.argv[1]))
print(lease["a"], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def leases() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


def listener(port: int) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((LOOPBACK, port))
    server.listen()
    return server


def free_port(tmp_path: Path) -> int:
    with lease_ports(("x",), book=tmp_path / "throw-away.json") as lease:
        return lease["x"]


def test_the_next_lease_has_the_same_ports(tmp_path: Path) -> None:
    book = tmp_path / "ports.json"
    with lease_ports(("kafka", "controller"), book=book) as first:
        given = dict(first.ports)
    with lease_ports(("kafka", "controller"), book=book) as second:
        assert second.ports == given
    assert given["kafka"] != given["controller"]


def test_a_remembered_port_that_is_taken_is_replaced_for_good(tmp_path: Path) -> None:
    book = tmp_path / "ports.json"
    with lease_ports(("a",), book=book) as first:
        old = first["a"]
    with listener(old), lease_ports(("a",), book=book) as second:
        new = second["a"]
    assert new != old
    with lease_ports(("a",), book=book) as third:
        assert third["a"] == new


def test_a_held_lease_keeps_its_ports_from_others_although_nothing_listens(tmp_path: Path, leases: ExitStack) -> None:
    book = tmp_path / "ports.json"
    first = leases.enter_context(lease_ports(("a",), book=book))
    second = leases.enter_context(lease_ports(("a",), book=book))
    assert second["a"] != first["a"]


def test_the_leases_of_a_killed_process_are_free_again(tmp_path: Path) -> None:
    book = tmp_path / "ports.json"
    process = python(LEASER, str(book))
    try:
        port = int(first_line(process))
        with pytest.raises(LocalStackError):
            lease_ports(("b",), book=tmp_path / "other.json", fixed={"b": port})
    finally:
        end(process)
    with lease_ports(("a",), book=book) as lease:
        assert lease["a"] == port


def test_when_ports_run_out_it_is_an_error_and_not_a_port_twice(
    tmp_path: Path, leases: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "_ephemeral_start", lambda: LOWEST_PORT + 8)
    given: list[int] = []

    def lease_one_after_the_other() -> None:
        for number in range(9):
            lease = leases.enter_context(lease_ports(("n",), book=tmp_path / f"{number}.json"))
            given.append(lease["n"])

    with pytest.raises(LocalStackError, match="no free port for n"):
        lease_one_after_the_other()
    assert len(set(given)) == len(given) > 0
    leases.close()
    with lease_ports(("again",), book=tmp_path / "again.json") as lease:
        assert LOWEST_PORT <= lease["again"] < LOWEST_PORT + 8


def test_a_fixed_port_is_taken_or_refused(tmp_path: Path) -> None:
    port = free_port(tmp_path)
    with lease_ports(("a", "b"), book=tmp_path / "p.json", fixed={"a": port, "b": None}) as lease:
        assert lease["a"] == port
    with listener(port), pytest.raises(LocalStackError, match=str(port)):
        lease_ports(("a",), book=tmp_path / "p.json", fixed={"a": port})


def test_a_lease_that_fails_holds_nothing(tmp_path: Path) -> None:
    good, taken = free_port(tmp_path), free_port(tmp_path)
    with listener(taken), pytest.raises(LocalStackError):
        lease_ports(("a", "b"), book=tmp_path / "p.json", fixed={"a": good, "b": taken})
    with lease_ports(("a",), book=tmp_path / "p.json", fixed={"a": good}) as lease:
        assert lease["a"] == good


@pytest.mark.parametrize("taken", [0, GRPC_PORT_OFFSET])
def test_with_grpc_both_ports_must_be_free(taken: int, tmp_path: Path) -> None:
    with lease_ports(("s3",), book=tmp_path / "p.json", with_grpc=True) as lease:
        port = lease["s3"]
    assert port + GRPC_PORT_OFFSET < 65536
    with listener(port + taken), lease_ports(("s3",), book=tmp_path / "p.json", with_grpc=True) as lease:
        assert lease["s3"] != port


def test_with_grpc_both_ports_are_held(tmp_path: Path, leases: ExitStack) -> None:
    first = leases.enter_context(lease_ports(("s3",), book=tmp_path / "p.json", with_grpc=True))
    for port in (first["s3"], first["s3"] + GRPC_PORT_OFFSET):
        with pytest.raises(LocalStackError):
            lease_ports(("x",), book=tmp_path / "q.json", fixed={"x": port})


def test_old_connections_of_a_stopped_server_do_not_cost_it_its_port(tmp_path: Path) -> None:
    port = free_port(tmp_path)
    with listener(port) as server:
        client = socket.create_connection((LOOPBACK, port))
        connection, _ = server.accept()
        connection.close()  # the server's side closes first, so TIME_WAIT is on its port
        client.close()
    with lease_ports(("a",), book=tmp_path / "p.json", fixed={"a": port}) as lease:
        assert lease["a"] == port


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": "b"}'])
def test_a_damaged_book_is_an_error_that_says_what_to_do(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_bytes(content)
    with pytest.raises(LocalStackError, match="delete it"):
        lease_ports(("a",), book=tmp_path / "ports.json")


def test_release_is_safe_to_repeat() -> None:
    lease = PortLease()
    lease.release()
    lease.release()
