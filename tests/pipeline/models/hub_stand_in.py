"""A hub on this machine, as the Hugging Face hub and as ModelScope: the requests that their clients
make, and what can go wrong with them."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SMALL = 1000
"""Bytes; what is larger has its hash by SHA-256 (Git LFS)."""


@dataclass
class Hub:
    """Of one repository, "org/model", whose branch is `main` (`master`)."""

    files: dict[str, bytes]
    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Paths, and their Range."""
    refuses: tuple[int, str] = (0, "")
    """Status of every answer, and the code of the error (X-Error-Code)."""
    refuses_files: bool = False
    """As `refuses`, files only."""
    cut: dict[str, int] = field(default_factory=dict)
    """Bytes of a file after which its next answer breaks off."""
    damaged: set[str] = field(default_factory=set)
    """Files that come with a byte changed."""

    def digest(self, name: str) -> str:
        data = self.files[name]
        if len(data) > SMALL:
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()

    def listing(self) -> list[dict[str, object]]:
        """As the Hugging Face hub lists them."""
        files: list[dict[str, object]] = []
        for name, data in self.files.items():
            entry: dict[str, object] = {"type": "file", "path": name, "size": len(data)}
            entry["oid"] = self.digest(name) if len(data) <= SMALL else "f" * 40
            if len(data) > SMALL:
                entry["lfs"] = {"oid": self.digest(name), "size": len(data), "pointerSize": 130}
            files.append(entry)
        return files

    def modelscope_listing(self) -> dict[str, object]:
        files = [
            {
                "Path": name,
                "Type": "blob",
                "Size": len(data),
                "Sha256": hashlib.sha256(data).hexdigest(),
            }
            for name, data in self.files.items()
        ]
        return {"Code": 200, "Data": {"Files": [{"Path": "folder", "Type": "tree"}, *files]}}


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, *of: object) -> None:
            pass

        def _answer(self, with_body: bool) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            if with_body:
                hub.asked.append((parts.path, self.headers.get("Range", "")))
            is_file = "/resolve/" in parts.path or "FilePath" in query
            if hub.refuses[0] and (is_file or not hub.refuses_files):
                return self._send(hub.refuses[0], b"{}", {"X-Error-Code": hub.refuses[1]})
            if "/org/model" not in parts.path:
                return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            if parts.path.startswith("/api/v1/models/"):
                self._modelscope(parts.path, query)
            elif "/tree/" in parts.path or "/revision/" in parts.path:
                self._tell(parts.path)
            else:
                self._file(parts.path.rpartition(f"/resolve/{COMMIT}/")[2], with_body)

        def _tell(self, path: str) -> None:
            revision = path.rpartition("/")[2]
            if revision not in ("main", COMMIT):
                return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            told = hub.listing() if "/tree/" in path else {"id": "org/model", "sha": COMMIT}
            self._send(200, json.dumps(told).encode())

        def _modelscope(self, path: str, query: dict[str, str]) -> None:
            if query["Revision"] not in ("master", COMMIT):
                return self._send(404, b"{}")
            if path.endswith("/files"):
                return self._send(200, json.dumps(hub.modelscope_listing()).encode())
            self._file(query["FilePath"], with_body=True)

        def _file(self, name: str, with_body: bool) -> None:
            if name not in hub.files:
                return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            data = hub.files[name]
            if name in hub.damaged:
                data = bytes([data[0] ^ 1]) + data[1:]
            headers = {"ETag": f'"{hub.digest(name)}"', "X-Repo-Commit": COMMIT}
            begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
            if begin:
                headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
            cut = hub.cut.pop(name, None) if with_body else None
            self._send(206 if begin else 200, data[begin:], headers, cut)

        def _send(
            self,
            status: int,
            body: bytes,
            headers: dict[str, str] | None = None,
            cut: int | None = None,
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[:cut])
            if cut is not None:
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
