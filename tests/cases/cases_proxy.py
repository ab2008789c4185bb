"""A relay in front of a server that loses answers: the request is carried out, the client sees the line go dead."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Relay(ThreadingHTTPServer):
    """Passes everything on to ``port``; the answer to the first ``losses`` requests for ``path`` is lost."""

    daemon_threads = True

    def __init__(self, port: int, path: str, losses: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port, self.path, self.losses = port, path, losses
        self.seen = 0

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Relay
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        onward = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name != "Host"}
        onward.request(self.command, self.path, body, headers | {"Host": f"127.0.0.1:{self.server.port}"})
        answer = onward.getresponse()
        content = answer.read()
        onward.close()
        if self.server.path in self.path:
            self.server.seen += 1
            if self.server.seen <= self.server.losses:
                self.close_connection = True
                self.connection.close()
                return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815

    def log_message(self, format: str, *arguments: object) -> None:
        return


@contextmanager
def losing_answers(port: int, path: str, losses: int = 1) -> Iterator[Relay]:
    relay = Relay(port, path, losses)
    thread = Thread(target=relay.serve_forever, daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        relay.shutdown()
        relay.server_close()
        thread.join()
