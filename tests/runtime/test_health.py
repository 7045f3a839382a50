"""The three paths of every process, asked over HTTP."""

import http.client
import json
import threading
from collections.abc import Iterator

import pytest
from prometheus_client import Counter

from runtime.health import Health, HealthServer

COUNTER = Counter("headrace_test_health", "A counter of this test")


class State:
    """A health that a test can change."""

    def __init__(self) -> None:
        self.health = Health()

    def __call__(self) -> Health:
        return self.health


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def server(state: State) -> Iterator[HealthServer]:
    running = HealthServer(state)
    running.start()
    yield running
    running.stop()


def get(server: HealthServer, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("health", "healthz", "readyz"),
    [
        (Health(is_alive=True, is_ready=False, detail="loading"), 200, 503),
        (Health(is_alive=True, is_ready=True), 200, 200),
        (Health(is_alive=False, is_ready=True, detail="stuck"), 503, 503),
    ],
)
def test_alive_and_ready_are_two_answers(
    server: HealthServer, state: State, health: Health, healthz: int, readyz: int
) -> None:
    state.health = health
    assert get(server, "/healthz")[0] == healthz
    status, body = get(server, "/readyz")
    assert status == readyz
    assert json.loads(body) == {"is_alive": health.is_alive, "is_ready": health.is_ready, "detail": health.detail}


def test_metrics_are_in_the_format_of_prometheus(server: HealthServer) -> None:
    COUNTER.inc(3)
    status, body = get(server, "/metrics")
    assert status == 200
    assert b"headrace_test_health_total 3.0" in body


def test_another_path_says_which_there_are(server: HealthServer) -> None:
    status, body = get(server, "/")
    assert status == 404
    assert b"/readyz" in body


def test_one_that_asks_slowly_does_not_hold_up_the_others(server: HealthServer) -> None:
    slow = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    slow.connect()
    slow.send(b"GET /healthz HT")
    assert get(server, "/healthz")[0] == 200
    slow.close()


def test_a_stopped_server_has_given_its_port_and_its_thread_back(state: State) -> None:
    before = threading.active_count()
    running = HealthServer(state)
    running.start()
    port = running.port
    running.stop()
    assert threading.active_count() == before
    again = HealthServer(state, port=port)
    again.start()
    again.stop()
