"""A hub on this machine, as the Hugging Face hub and as ModelScope: the requests that their clients
make, and what can go wrong with them.

`python -m tests.support.hub_stand_in FOLDER` serves FOLDER/ORG/NAME/… until it is stopped, for
offhook with `HF_ENDPOINT` set to the address that it prints.
"""

import argparse
import gzip
import hashlib
import json
import posixpath
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SMALL = 1000
"""Bytes; what is larger has its hash by SHA-256 (Git LFS)."""
MODEL = "org/model"
PACED_BYTES = 16_384
POLL_S = 0.02
"""Interval in s at which a server looks whether it is to end."""
STALLED_S = 60.0
"""Time limit in s of an answer that stalls."""
ENDLESS_BYTES = 300_000_000
"""What a body that never ends has, so that a test does."""


def digest_of(data: bytes) -> str:
    if len(data) > SMALL:
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


@dataclass
class Hub:
    """Repositories by name. A name has the branch `main` (`master`), which is COMMIT; `org/model`
    has no other commit, the other repositories have any."""

    files: dict[str, bytes] = field(default_factory=dict)
    """Of "org/model"."""
    others: dict[str, dict[str, bytes]] = field(default_factory=dict)
    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Paths, and their Range."""
    tokens: set[str] = field(default_factory=set)
    """Authorization headers that came."""
    refuses: tuple[int, str] = (0, "")
    """Status of every answer, and the code of the error (X-Error-Code)."""
    refuses_files: bool = False
    """As `refuses`, files only."""
    busy: list[int] = field(default_factory=list)
    """Statuses of the next answers, with Retry-After: 0; `busy_files` are of files only."""
    busy_files: list[int] = field(default_factory=list)
    cut: dict[str, int] = field(default_factory=dict)
    """Bytes of a file after which its next answer breaks off."""
    stalls: dict[str, int] = field(default_factory=dict)
    """Bytes of a file after which its next answer stalls, as long as the connection lasts."""
    damaged: set[str] = field(default_factory=set)
    """Files that come with a byte changed."""
    damaged_once: set[str] = field(default_factory=set)
    resumes: bool = True
    """Whether Range is heeded."""
    bytes_per_second: float = 0.0
    """Of each answer; 0: as fast as it goes."""

    page_files: int = 0
    """Files of a page of the list of files; 0: all."""

    # What only a mirror that lies does.

    commit: str = COMMIT
    """What it tells of a branch."""
    next_page: str = ""
    """Where it says the list of files goes on; {} is its own address."""
    entries: list[dict[str, object]] = field(default_factory=list)
    """Of its list of files, beside the true ones."""
    leads_to: str = ""
    """Where it redirects questions to, without their path; `leads_files_to` those for files, with
    it."""
    leads_files_to: str = ""
    coding: str = ""
    """Content-Encoding of all bodies, which are `gzip` if it says so."""
    endless: str = ""
    """"questions", "files", "redirects" or "errors" whose bodies never end."""
    endless_sent: int = 0
    """Bytes of such bodies that were taken."""

    def repository(self, name: str) -> dict[str, bytes] | None:
        return self.files if name == MODEL else self.others.get(name)

    def listing(self, files: dict[str, bytes]) -> list[dict[str, object]]:
        """As the Hugging Face hub lists them."""
        listed: list[dict[str, object]] = []
        for name, data in files.items():
            entry: dict[str, object] = {"type": "file", "path": name, "size": len(data)}
            entry["oid"] = digest_of(data) if len(data) <= SMALL else "f" * 40
            if len(data) > SMALL:
                entry["lfs"] = {"oid": digest_of(data), "size": len(data), "pointerSize": 130}
            listed.append(entry)
        return [*listed, *self.entries]

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
        lies = [
            {"Path": lie.get("path"), "Type": "blob", "Size": lie.get("size"), "Sha256": lie["oid"]}
            for lie in self.entries
        ]
        return {"Code": 200, "Data": {"Files": [{"Path": "folder", "Type": "tree"}, *files, *lies]}}


def _kind_of(status: int, headers: dict[str, str]) -> str:
    """Returns what kind of answer it is, see `Hub.endless`."""
    if status >= 400:
        return "errors"
    if status >= 300:
        return "redirects"
    return "files" if "ETag" in headers else "questions"


@contextmanager
def running(hub: Hub, port: int = 0, tls: tuple[Path, Path] | None = None) -> Iterator[Hub]:
    """Serves a hub; `tls` are the files of its certificate and key."""
    closing = threading.Event()

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
            path = unquote(parts.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            for asked in (f"/api/models/{MODEL}/tree/", f"/{MODEL}/resolve/"):
                # Clients resolve dots in paths.
                path = path.replace(posixpath.normpath(asked + hub.commit), asked + COMMIT)
            hub.tokens.add(self.headers.get("Authorization", ""))
            if with_body:
                hub.asked.append((path, self.headers.get("Range", "")))
            is_file = "/resolve/" in path or "FilePath" in query
            if is_file and hub.leads_files_to:
                return self._send(302, b"", {"Location": hub.leads_files_to + self.path})
            if not is_file and hub.leads_to:
                return self._send(302, b"", {"Location": hub.leads_to})
            if hub.refuses[0] and (is_file or not hub.refuses_files):
                return self._send(hub.refuses[0], b"{}", {"X-Error-Code": hub.refuses[1]})
            busy = hub.busy_files if is_file and hub.busy_files else hub.busy
            if busy:
                return self._send(busy.pop(0), b"{}", {"Retry-After": "0"})
            if match := re.fullmatch(r"/api/v1/models/([^/]+/[^/]+)/repo(/files)?", path):
                return self._modelscope(match[1], bool(match[2]), query)
            match = re.fullmatch(
                r"(?:/api/models)?/([^/]+/[^/]+)/(revision|tree|resolve)/([^/]+)(?:/(.*))?", path
            )
            files = hub.repository(match[1]) if match else None
            if not match or files is None:
                return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            _, kind, revision, name = match.groups()
            fixed = {"main", COMMIT}
            if revision not in fixed and (match[1] == MODEL or len(revision) != len(COMMIT)):
                return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            commit = COMMIT if revision == "main" else revision
            if kind == "resolve":
                return self._file(files, name, commit, with_body)
            if kind != "tree":
                return self._send(
                    200,
                    json.dumps(
                        {"id": match[1], "sha": hub.commit if revision == "main" else revision}
                    ).encode(),
                )
            listed, begin = hub.listing(files), int(query.get("cursor", "0"))
            end = begin + hub.page_files if hub.page_files else len(listed)
            following = f"?cursor={end}" if end < len(listed) else hub.next_page.format(hub.url)
            more = {"Link": f'<{following}>; rel="next"'} if following else {}
            self._send(200, json.dumps(listed[begin:end]).encode(), more)

        def _modelscope(self, name: str, is_listing: bool, query: dict[str, str]) -> None:
            if name != MODEL or query["Revision"] not in ("master", COMMIT):
                return self._send(404, b"{}")
            if is_listing:
                return self._send(200, json.dumps(hub.modelscope_listing()).encode())
            self._file(hub.files, query["FilePath"], COMMIT, with_body=True)

        def _file(self, files: dict[str, bytes], name: str, commit: str, with_body: bool) -> None:
            if name not in files:
                return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            data = files[name]
            etag = f'"{digest_of(data)}"'
            headers = {
                "ETag": etag,
                "X-Linked-ETag": etag,
                "X-Linked-Size": str(len(data)),
                "X-Repo-Commit": commit,
                "Accept-Ranges": "bytes",
            }
            if with_body and (name in hub.damaged or name in hub.damaged_once):
                hub.damaged_once.discard(name)
                data = bytes([data[0] ^ 1]) + data[1:-1] + bytes([data[-1] ^ 1])
            asked = self.headers.get("Range", "") if hub.resumes else ""
            begin = int((asked or "bytes=0-").removeprefix("bytes=").rstrip("-"))
            if begin:
                headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
            cut = hub.cut.pop(name, None) if with_body else None
            stall = hub.stalls.pop(name, None) if with_body else None
            self._send(206 if begin else 200, data[begin:], headers, cut, stall)

        def _send(
            self,
            status: int,
            body: bytes,
            headers: dict[str, str] | None = None,
            cut: int | None = None,
            stall: int | None = None,
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            if hub.coding:
                self.send_header("Content-Encoding", hub.coding)
                body = gzip.compress(body) if hub.coding == "gzip" else body
            if hub.endless == _kind_of(status, headers or {}):
                return self._never_end()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                with suppress(ConnectionError):
                    self._write(body[:cut] if stall is None else body[:stall])
            if stall is not None:
                self.wfile.flush()
                closing.wait(STALLED_S)
            if cut is not None or stall is not None:
                self.close_connection = True

        def _never_end(self) -> None:
            self.end_headers()
            self.close_connection = True
            with suppress(OSError):
                for _ in range(ENDLESS_BYTES // PACED_BYTES):
                    self.wfile.write(b" " * PACED_BYTES)
                    hub.endless_sent += PACED_BYTES

        def _write(self, body: bytes) -> None:
            if not hub.bytes_per_second:
                self.wfile.write(body)
                return
            for begin in range(0, len(body), PACED_BYTES):
                self.wfile.write(body[begin : begin + PACED_BYTES])
                time.sleep(PACED_BYTES / hub.bytes_per_second)

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        hub.url = f"https://localhost:{server.server_address[1]}"
    Thread(target=server.serve_forever, args=(POLL_S,), daemon=True).start()
    try:
        yield hub
    finally:
        closing.set()
        server.shutdown()
        server.server_close()


@dataclass
class Proxy:
    url: str = ""
    asked: list[str] = field(default_factory=list)
    """Hosts."""


@contextmanager
def proxy_to(hub: Hub) -> Iterator[Proxy]:
    """An HTTP proxy (RFC 9110: absolute URIs, CONNECT) that takes every host for the hub."""
    proxy = Proxy()

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            proxy.asked.append(self.path)
            port = urlsplit(hub.url).port
            with socket.create_connection(("127.0.0.1", port)) as there:
                self.send_response(200)
                self.end_headers()
                back = Thread(target=self._relay, args=(there, self.connection), daemon=True)
                back.start()
                self._relay(self.connection, there)
                back.join()
            self.close_connection = True

        def _relay(self, source: socket.socket, sink: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(PACED_BYTES):
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            proxy.asked.append(parts.netloc)
            path = parts.path + (f"?{parts.query}" if parts.query else "")
            there = HTTPConnection(hub.url.removeprefix("http://"))
            there.request("GET", path, headers=dict(self.headers.items()))
            answer = there.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *of: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(POLL_S,), daemon=True).start()
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()


def of_folder(folder: Path) -> dict[str, dict[str, bytes]]:
    """Reads repositories from FOLDER/ORG/NAME/…"""
    return {
        f"{place.parent.name}/{place.name}": {
            str(path.relative_to(place)): path.read_bytes()
            for path in sorted(place.rglob("*"))
            if path.is_file()
        }
        for place in sorted(folder.glob("*/*"))
        if place.is_dir()
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--port", type=int, default=0)
    arguments.add_argument("--bytes-per-second", type=float, default=0.0)
    given = arguments.parse_args()
    hub = Hub(others=of_folder(given.folder), bytes_per_second=given.bytes_per_second)
    with running(hub, given.port):
        sys.stdout.write(f"{hub.url}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
