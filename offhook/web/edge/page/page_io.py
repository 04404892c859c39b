"""Serves the page at `/` and its files from memory: compressed once, and revalidated by the browser
each time (RFC 9110 §13.1.2)."""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from aiohttp import ETag, web

PAGE = Path(str(files("offhook.web.edge.page") / "static"))
POLICY = {
    "default-src": "'none'",
    **dict.fromkeys(("script-src", "style-src", "img-src", "connect-src"), "'self'"),
    "media-src": "blob: mediastream:",
    **dict.fromkeys(("frame-ancestors", "base-uri", "form-action"), "'none'"),
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
"""What the page may load and run: its own files, and no text as markup or script."""
PERMISSIONS = {
    **dict.fromkeys(("microphone", "autoplay", "screen-wake-lock", "speaker-selection"), "(self)"),
    **dict.fromkeys(("camera", "display-capture", "geolocation", "midi", "usb", "serial"), "()"),
}
OF_PAGE = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in POLICY.items()),
    "Permissions-Policy": ", ".join(f"{name}={value}" for name, value in PERMISSIONS.items()),
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Headers of the page, beside those of every response."""
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class PageFile:
    """One file of the page, ready to send."""

    type: str
    plain: bytes
    compressed: bytes
    etag: str


def read_file(path: Path) -> PageFile:
    plain = path.read_bytes()
    etag = hashlib.sha256(plain).hexdigest()[:32]
    return PageFile(TYPES[path.suffix], plain, gzip.compress(plain, mtime=0), etag)


def answer_file(request: web.Request, file: PageFile) -> web.Response:
    headers = {"Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    known = request.if_none_match or ()
    if any(tag.value in (file.etag, "*") for tag in known):
        response = web.Response(status=304, headers=headers)
    else:
        body = file.plain
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            body, headers["Content-Encoding"] = file.compressed, "gzip"
        response = web.Response(body=body, content_type=file.type, charset="utf-8", headers=headers)
    response.etag = ETag(file.etag, is_weak=True)  # of two encodings (RFC 9110 §8.8.1)
    return response


@cache  # the public's application and the operator's have the same ones
def files_in(folder: Path) -> Mapping[str, PageFile]:
    """Reads the files of a page, by name."""
    return {path.name: read_file(path) for path in folder.iterdir() if path.suffix in TYPES}


def add_page(
    router: web.UrlDispatcher,
    there: Mapping[str, PageFile],
    path: str,
    files: str,
    headers: Mapping[str, str],
) -> None:
    """Adds a page's index at `path`, with these headers, and each of its files at `files`/NAME."""

    async def index(request: web.Request) -> web.Response:
        response = answer_file(request, there["index.html"])
        response.headers.update(headers)
        return response

    async def file(request: web.Request) -> web.Response:
        found = there.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound(text="no such file")
        return answer_file(request, found)

    router.add_get(path, index)
    router.add_get(f"{files}/{{name}}", file)


def add_routes(router: web.UrlDispatcher) -> None:
    """Adds `/`, `/page/NAME` for each of its files, and `/embed.js` for the pages of other
    sites."""
    there = files_in(PAGE)

    async def embedded(request: web.Request) -> web.Response:
        response = answer_file(request, there["embed.js"])
        response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        return response

    router.add_get("/embed.js", embedded)
    add_page(router, there, "/", "/page", OF_PAGE)
