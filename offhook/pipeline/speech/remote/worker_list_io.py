"""The addresses of the workers: as configured, of a name that has several, or from a URL that lists
them. What was known is kept while a source does not answer.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

import aiohttp
from loguru import logger
from pydantic import BaseModel, Field, ValidationError

from offhook.pipeline.speech.remote.pool import WorkerAddress

UNIX = "unix:"
RESOLVE_S = 2.0
"""Interval in s at which names are resolved."""
DIRECTORY_S = 5.0
"""Interval in s at which a URL that lists workers is asked."""
ANSWER_TIMEOUT_S = 2.0
"""Time limit in s of a source's answer; then its last list stays in use, and a warning is
logged."""
MAX_DIRECTORY_BYTES = 1 << 20
"""Maximum size of a list of workers; a longer one is refused, and the last good one stays."""
MAX_WORKERS = 4096
"""Maximum workers of a list, of which one with more is refused, and of addresses of a name, of
which the others are ignored."""

Resolver = Callable[[str, int], Awaitable[list[str]]]
"""Returns the IP addresses of a host and port. Raises OSError."""


class _Listed(BaseModel):
    url: Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+/?$")]


class _Directory(BaseModel):
    workers: Annotated[list[_Listed], Field(max_length=MAX_WORKERS)]


def is_directory(url: str) -> bool:
    """Whether a URL lists workers; that of a worker has no path but the ``/v1`` of OpenAI
    clients."""
    return not url.startswith(UNIX) and urlsplit(url).path.rstrip("/") not in ("", "/v1")


def is_fixed(url: str) -> bool:
    """Whether it is one worker for good: a socket, an IP address, or this machine."""
    if url.startswith(UNIX):
        return True
    host = urlsplit(url).hostname or ""
    try:
        ip_address(host)
    except ValueError:
        return not is_directory(url) and host == "localhost"
    return not is_directory(url)


def worker_url(url: str) -> str:
    return url if url.startswith(UNIX) else url.rstrip("/").removesuffix("/v1")


async def resolve(host: str, port: int) -> list[str]:
    """Returns the addresses of a host, of the family preferred here (RFC 6724); none if it has one
    at most of each family, as a single machine has. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    by_family: dict[int, list[str]] = {}
    for family, _, _, _, address in found:
        by_family.setdefault(family, []).append(str(address[0]))
    several = any(len(addresses) > 1 for addresses in by_family.values())
    return next(iter(by_family.values())) if several else []


class WorkerList:
    """The workers at `urls`. `resolver` is `resolve` but in tests."""

    def __init__(self, urls: Sequence[str], resolver: Resolver = resolve) -> None:
        self._urls = tuple(worker_url(url) for url in urls)
        self._resolver = resolver
        self._known: dict[str, list[WorkerAddress]] = {
            url: [] if is_directory(url) else [WorkerAddress(url)] for url in self._urls
        }
        self._faults: dict[str, str] = {}
        """What was logged of the sources that do not answer."""
        directories = any(map(is_directory, self._urls))
        named = not all(is_fixed(url) or is_directory(url) for url in self._urls)
        self.refresh_s = RESOLVE_S if named else DIRECTORY_S if directories else None
        """Interval in s of `refresh`; None: the list is fixed."""
        self._asked_at: float | None = None

    @property
    def addresses(self) -> list[WorkerAddress]:
        return [address for addresses in self._known.values() for address in addresses]

    async def refresh(self, http: aiohttp.ClientSession) -> None:
        """Asks the sources that are due."""
        now = asyncio.get_running_loop().time()
        due = self._asked_at is None or now - self._asked_at >= DIRECTORY_S
        self._asked_at = now if due else self._asked_at
        await asyncio.gather(
            *(
                self._refresh(url, http)
                for url in self._urls
                if (due if is_directory(url) else not is_fixed(url))
            )
        )

    async def _refresh(self, url: str, http: aiohttp.ClientSession) -> None:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                if is_directory(url):
                    self._known[url] = await _read_directory(url, http)
                else:
                    parts = urlsplit(url)
                    port = parts.port or (443 if parts.scheme == "https" else 80)
                    found = await self._resolver(parts.hostname or "", port)
                    ips = [WorkerAddress(url, ip) for ip in dict.fromkeys(found)]
                    self._known[url] = ips[:MAX_WORKERS] or [WorkerAddress(url)]
            self._faults.pop(url, None)
        except (OSError, aiohttp.ClientError, TimeoutError, ValueError) as error:
            words = str(error).partition("\n")[0][:200] or type(error).__name__
            if self._faults.get(url) != words:
                logger.warning("the list of workers at {} stays as it was: {}", url, words)
                self._faults[url] = words


async def read_up_to(answer: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """Returns the body of an answer, or so much of a longer one. Raises ClientError, OSError."""
    body = bytearray()
    while len(body) < most_bytes and not answer.content.at_eof():
        body += await answer.content.read(most_bytes - len(body))
    return bytes(body)


async def _read_directory(url: str, http: aiohttp.ClientSession) -> list[WorkerAddress]:
    """Raises ClientError, OSError, ValueError."""
    async with http.get(url, raise_for_status=True) as answer:
        body = await read_up_to(answer, MAX_DIRECTORY_BYTES + 1)
    try:
        listed = _Directory.model_validate_json(body).workers
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return [WorkerAddress(url) for url in dict.fromkeys(w.url.rstrip("/") for w in listed)]
