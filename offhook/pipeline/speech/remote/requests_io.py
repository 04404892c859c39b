"""Requests to a remote worker over HTTP: their answers and failures."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp

from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.remote.pool_io import Workers
from offhook.pipeline.speech.remote.worker_client_io import LOST, as_error, in_words

MAX_ANSWER_BYTES = 4 << 20
"""Maximum size of a JSON response, of which a thousand voices are 200 kB; with a longer one the
request has failed."""
QUIET_S = 60.0
"""Time in s without data after which a speaking worker counts as lost, and its request has
failed."""
READ_BYTES = 1 << 14


async def answer(
    response: aiohttp.ClientResponse, error_of: Callable[[int, str], Exception]
) -> str:
    """Reads a JSON response. Raises any of LOST, and what `error_of` makes of the status and body
    of one other than 200."""
    try:
        data = bytearray()
        while more := await read_more(response):
            data += more
            if len(data) > MAX_ANSWER_BYTES:
                raise EngineError("its answer is too long")
        text = data.decode(errors="replace")
        if response.status != 200:
            raise error_of(response.status, text)
        return text
    finally:
        response.close()


@asynccontextmanager
async def failing(client: Workers) -> AsyncIterator[None]:
    """Converts connection errors to EngineError."""
    try:
        yield
    except LOST as error:
        words = f"the speech worker at {client.url}: {in_words(error)}"
        raise as_error(error, words, "") from error


async def read_more(response: aiohttp.ClientResponse) -> bytes:
    """Returns what comes next of a response; empty at its end. Raises TimeoutError."""
    async with asyncio.timeout(QUIET_S):
        return await response.content.read(READ_BYTES)
