"""What the doctor says of the lines of a server that runs."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from offhook.web.app.doctor.finding import Finding
from offhook.web.app.doctor.server_io import examine_calls
from offhook.web.config.config import Config
from offhook.web.config.server import Server

Examine = Callable[[dict[str, object]], list[Finding]]


@pytest.fixture
def examine() -> Iterator[Examine]:
    """Returns the findings with a server whose /readyz is this."""
    body = b""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/readyz" else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *of: object) -> None:
            pass

    def find(state: dict[str, object]) -> list[Finding]:
        nonlocal body
        body = json.dumps(state).encode()
        return list(examine_calls(Config(server=Server(port=server.server_port))))

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield find
        server.shutdown()


def test_overloaded_is_told_apart_from_full(examine: Examine) -> None:
    lines = {"ready": True, "calls": 3, "max_calls": 20, "overloaded": False}
    [free] = examine(lines)
    assert free.verdict == "ok"
    assert free.detail == "3 of 20 lines of the running server are in use"
    [overloaded] = examine(lines | {"overloaded": True})
    assert overloaded.verdict == "note"
    assert "3 of 20" in overloaded.detail
    assert "overloaded: packets leave late" in overloaded.detail
    [full] = examine(lines | {"calls": 20})
    assert full.verdict == "note"
    assert "overloaded" not in full.detail
    assert "until one ends" in full.detail


def test_without_a_server_nothing_is_said(examine: Examine) -> None:
    assert examine({"else": "where"}) == []
    assert list(examine_calls(Config(server=Server(port=1)))) == []
