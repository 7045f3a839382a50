"""/metrics, /healthz and /readyz of a process, in their own thread: they answer also when the event loop does not."""

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import msgspec
from prometheus_client import make_wsgi_app

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], Any]


class Health(msgspec.Struct, kw_only=True, frozen=True):
    """How a process is. Alive: it need not be restarted. Ready: it can do its work now. `detail` says why not."""

    is_alive: bool = True
    is_ready: bool = False
    detail: str = ""


class HealthServer:
    """Serves the three paths on one port; port 0 takes a free one."""

    def __init__(self, check: Callable[[], Health], *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._check = check
        self._metrics = make_wsgi_app()
        self._server = make_server(host, port, self._serve, server_class=_Server, handler_class=_QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.server_port

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            page: Iterable[bytes] = self._metrics(environ, start_response)
            return page
        health = self._check()
        if path == "/healthz":
            return _answer(start_response, health, ok=health.is_alive)
        if path == "/readyz":
            return _answer(start_response, health, ok=health.is_alive and health.is_ready)
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"try /metrics, /healthz or /readyz\n"]


def _answer(start_response: StartResponse, health: Health, *, ok: bool) -> list[bytes]:
    start_response("200 OK" if ok else "503 Service Unavailable", [("Content-Type", "application/json")])
    return [msgspec.json.encode(health) + b"\n"]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """A probe each second is not worth a log line."""
