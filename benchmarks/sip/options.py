"""SIP OPTIONS at maximum speed."""

import asyncio
import secrets
import socket
import time
from collections import Counter
from contextlib import suppress
from time import monotonic
from typing import Any

from benchmarks.processes.own_server import HOST

PATIENCE_S = 1.0
"""Time in s without any response after which outstanding requests are lost and others are sent."""


def request(server: tuple[str, int], local: tuple[str, int]) -> bytes:
    """Returns a unique request."""
    unique = secrets.token_hex(8)
    return (
        f"OPTIONS sip:100@{server[0]}:{server[1]} SIP/2.0\r\n"
        f"Via: SIP/2.0/UDP {local[0]}:{local[1]};branch=z9hG4bK{unique};rport\r\n"
        f"From: <sip:caller@{local[0]}>;tag={unique}\r\n"
        f"To: <sip:100@{server[0]}:{server[1]}>\r\n"
        f"Call-ID: {unique}\r\nCSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\n"
        "Accept: application/sdp\r\nContent-Length: 0\r\n\r\n"
    ).encode()


class Options:
    """Sends hand-made OPTIONS on its own socket, which costs next to nothing here."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind((HOST, 0))
        self._socket.connect(server)
        self._server, self._local = server, self._socket.getsockname()
        self._sent = 0

    async def ask(self, count: int, window: int) -> dict[str, Any]:
        """Sends `count` requests with `window` outstanding at a time."""
        loop = asyncio.get_running_loop()
        statuses: Counter[str] = Counter()
        lost = 0
        for _ in range(min(window, count)):
            self._send()
        began, cpu = monotonic(), time.process_time()
        while (done := statuses.total() + lost) < count:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    data = await loop.sock_recv(self._socket, 2048)
            except TimeoutError:
                lost += self._sent - done
                for _ in range(min(window, count - self._sent)):
                    self._send()
                continue
            while data:
                statuses[data[8:11].decode(errors="replace")] += 1
                if self._sent < count:
                    self._send()
                try:
                    data = self._socket.recv(2048)
                except BlockingIOError:
                    break
        seconds = monotonic() - began
        self._socket.close()
        own = {"cpu_percent": round(100 * (time.process_time() - cpu) / seconds, 1)}
        answered = {"statuses": dict(statuses), "lost": lost}
        return {**answered, "seconds": round(seconds, 3), "own": own}

    def _send(self) -> None:
        self._sent += 1
        with suppress(OSError):
            self._socket.send(request(self._server, self._local))
