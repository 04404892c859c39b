"""Makes vectors of texts at a server with OpenAI's embeddings API."""

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp
import numpy as np

from offhook.media.untrusted_json import read_json
from offhook.web.config.knowledge import Knowledge
from offhook.web.tools.knowledge.index_io import Vector

BATCH = 32
"""Texts of a request."""
BATCH_S = 60.0
"""Time limit in s of a request for the vectors of documents."""
QUERY_S = 1.0
"""Time limit in s of a request while a caller waits."""
MAX_RESPONSE_BYTES = 16 << 20
"""Maximum size of a response; a longer one is an error."""
MAX_DIMENSIONS = 8192
"""Maximum length of a vector; a longer one is an error."""
ERROR_CHARS = 300
"""Characters of a server's error that are logged."""


class EmbeddingsError(Exception):
    """Raised when there are no vectors; says why, without keys."""


class Embeddings:
    """A model of vectors at its server."""

    def __init__(self, settings: Knowledge) -> None:
        self._settings = settings
        self._http: aiohttp.ClientSession | None = None
        """Created with the first request."""

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def of(self, texts: Sequence[str], limit_s: float = BATCH_S) -> list[Vector]:
        """Returns a vector of each text, of BATCH at most. Raises EmbeddingsError."""
        try:
            async with asyncio.timeout(limit_s):
                body = await self._request(texts)
                # Megabytes of JSON: parsed here they would hold up packets.
                return await asyncio.to_thread(_vectors, body, len(texts))
        except TimeoutError as error:
            raise EmbeddingsError(f"no response within {limit_s:g} s") from error
        except aiohttp.ClientError as error:
            raise EmbeddingsError(f"{type(error).__name__}: {error}"[:ERROR_CHARS]) from error

    async def _request(self, texts: Sequence[str]) -> bytes:
        """Raises EmbeddingsError and the client's exceptions."""
        settings = self._settings
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout())
        key = settings.embeddings_api_key
        async with self._http.post(
            f"{settings.embeddings_url.rstrip('/')}/embeddings",
            json={"model": settings.embeddings_model, "input": list(texts)},
            headers={"Authorization": f"Bearer {key}"} if key else None,
            allow_redirects=False,
        ) as response:
            body = bytearray()
            async for chunk in response.content.iter_chunked(1 << 16):
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    raise EmbeddingsError(f"a response of over {MAX_RESPONSE_BYTES >> 20} MB")
            if response.status != 200:
                words = body[:ERROR_CHARS].decode(errors="replace")
                words = words.replace(key, "…") if key else words
                raise EmbeddingsError(f"status {response.status}: {words}")
            return bytes(body)


def _vectors(body: bytes, count: int) -> list[Vector]:
    """Returns the vectors of a response, in the order of their texts. Raises EmbeddingsError."""
    try:
        data: list[Any] = read_json(body)["data"]
        ordered = sorted(data, key=lambda one: int(one["index"]))
        found = np.array([one["embedding"] for one in ordered], np.float32)
    except (ValueError, TypeError, LookupError) as error:
        raise EmbeddingsError("the response has no embeddings") from error
    if found.ndim != 2 or len(found) != count or not 0 < found.shape[1] <= MAX_DIMENSIONS:
        raise EmbeddingsError(f"the response has embeddings of shape {found.shape}")
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not lengths.all():
        raise EmbeddingsError("the response has embeddings that are no directions")
    return list(found / lengths)
