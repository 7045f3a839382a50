"""A tiny role for tests: answers /readyz on a port with 200 while a file exists, with 503 while it does not."""

import http.server
import sys
from pathlib import Path


class Handler(http.server.BaseHTTPRequestHandler):
    """One path, two answers."""

    def do_GET(self) -> None:
        is_ready = self.path == "/readyz" and Path(sys.argv[2]).exists()
        self.send_response(200 if is_ready else 503)
        self.end_headers()


if __name__ == "__main__":
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
