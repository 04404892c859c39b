"""Reads the replies of Redis with a limit, and leaves the event loop to others meanwhile: redis-py
would read whatever comes, at once."""

import asyncio
from typing import Any

from redis._parsers import _AsyncRESP2Parser
from redis.exceptions import InvalidResponse

MAX_REPLY_BYTES = 64 << 20
"""Size of a reply, far beyond a long reply's audio; more is not read, and the connection closed."""
ELEMENT_BYTES = 64
"""What each element of a reply counts at least: its place in memory."""
TURN_ELEMENTS = 256
"""Elements of a reply after which others have their turn."""


class BoundedParser(_AsyncRESP2Parser):
    """redis-py's own (RESP 2), with the limit."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._left = self._elements = 0

    async def read_response(self, *arguments: Any, **options: Any) -> Any:
        self._left, self._elements = MAX_REPLY_BYTES, 0
        return await super().read_response(*arguments, **options)

    async def _readline(self) -> bytes:
        self._elements += 1
        if self._elements % TURN_ELEMENTS == 0:
            await asyncio.sleep(0)
        self._spend(ELEMENT_BYTES)
        line: bytes = await super()._readline()
        return line

    async def _read(self, length: int) -> bytes:
        self._spend(length)
        data: bytes = await super()._read(length)
        return data

    def _spend(self, size: int) -> None:
        self._left -= size
        if size < 0 or self._left < 0:
            raise InvalidResponse(f"a reply of more than {MAX_REPLY_BYTES >> 20} MB")
