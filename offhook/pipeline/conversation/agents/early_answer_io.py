"""An answer that a language model begins before it is certain that the caller's turn is over.

While the caller pauses, the model is asked with the words so far. If these turn out to be the turn,
its answer has begun already; otherwise it is dropped. Nothing of it is heard or done before: the
voice may prepare its first sentence, but tools run once the turn is over.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from offhook.pipeline.conversation.agents.agent_faults import AgentFailure
from offhook.pipeline.conversation.agents.completion import Completion
from offhook.pipeline.conversation.agents.completion_events import CompletionEvents

EARLY_S = 20.0
"""Time in s after which an answer is dropped that nobody has claimed: longer than any pause."""
EARLY_CHUNKS = 64
"""Chunks of a body that are read ahead; further ones wait until the turn is over."""
FIRST_CHARACTERS = 100
"""Characters of an answer that the voice prepares at most, some six seconds of speech; whatever is
dropped has cost the voice as much as what is heard."""
_SENTENCE_END = re.compile(r"[.!?…]\s|[。！？]")


class FirstSentence:
    """Reads the first sentence of an answer from its body while it comes in."""

    def __init__(self, answer: Completion) -> None:
        self.is_complete = False
        """Whether it is the whole answer."""
        self._answer = answer
        self._events = CompletionEvents()
        self._over = False

    def feed(self, data: bytes | None) -> str:
        """Returns what more is spoken of it; None is the end of the body. What is no answer ends
        it, for whoever claims the answer to handle."""
        if self._over:
            return ""
        answer, text = self._answer, ""
        try:
            for event in self._events.end() if data is None else self._events.feed(data):
                text += answer.add(event).text
            if data is None and not answer.calls():
                text += answer.end().text
                self.is_complete = bool(answer.text) and answer.incomplete is None
        except (ValueError, AgentFailure):
            self._over = True
        long = len(answer.text) >= FIRST_CHARACTERS or _SENTENCE_END.search(answer.text)
        self._over |= data is None or bool(long)
        return text


class EarlyAnswer:
    """A request with its `params`, made at once, and the body of its response."""

    def __init__(
        self,
        params: dict[str, Any],
        create: Callable[[dict[str, Any]], Awaitable[Any]],
        received: Callable[[bytes | None], None] = lambda data: None,
    ) -> None:
        """`create` makes the request and returns the client's stream. `received` gets each chunk
        that arrives before the answer is claimed, and None at the body's end."""
        self._params = params
        self._received = received
        self._chunks: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(EARLY_CHUNKS)
        self._failed = False
        self._reading = asyncio.create_task(self._read(create), name="early answer")
        self._expiry = asyncio.get_running_loop().call_later(EARLY_S, self._expire)

    def claim(self, params: dict[str, Any]) -> bool:
        """Returns whether it is the answer to a request with these parameters; then `body` yields
        it. One that has failed is none, and the request is to be made again."""
        if params != self._params or self._failed:
            return False
        self._expiry.cancel()
        self._received = lambda data: None
        return True

    async def body(self) -> AsyncGenerator[bytes, None]:
        """Yields the body of the response. Raises the client's exceptions."""
        while (chunk := await self._chunks.get()) is not None:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def close(self) -> None:
        """Ends the request, unless it has ended."""
        self._expiry.cancel()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self, create: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
        try:
            stream = await create(self._params)
            try:
                async with aclosing(stream.response.aiter_bytes()) as body:
                    async for chunk in body:
                        await self._chunks.put(chunk)
                        self._received(chunk)
            finally:
                await stream.close()
        except Exception as error:  # handled by whoever claims it
            self._failed = True
            await self._chunks.put(error)
        else:
            await self._chunks.put(None)
            self._received(None)

    def _expire(self) -> None:
        self._failed = True
        self._reading.cancel()
