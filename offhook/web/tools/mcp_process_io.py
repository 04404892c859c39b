"""An MCP server that is a process of ours, spoken to by its standard input and output.

mcp has such a transport too, which keeps a line of any length. A line here has at most
MAX_MESSAGE_BYTES, and the process none of our environment but what programs need.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from subprocess import PIPE
from typing import Any, Literal

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from offhook.processes.child_io import Child
from offhook.web.http.json_size import check_values
from offhook.web.tools.mcp_connection_io import (
    MAX_BYTES_PER_S,
    MAX_MESSAGE_BYTES,
    Failure,
    Pace,
)

INHERITED = (
    *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TEMP", "TMP", "TMPDIR"),
    *("TZ", "USER"),
)
"""Variables of our environment that the process gets."""
END_S = 2.0
"""Time in s for the process to end when its input does, then once more after SIGTERM; then it is
killed, with its children."""
LAST_WORDS_BYTES = 4096
"""Maximum bytes of what it has written to its standard error last that are kept, for the log."""
MAX_LAST_WORDS_CHARS = 200
"""Maximum characters of its last line there that the log shows."""


class ProcessTransport:
    """Starts a program and exchanges JSON-RPC messages with it, a line each."""

    mode: Literal["auto", "legacy"] = "auto"

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._command = (sys.executable, *command[1:]) if command[0] == "python" else command
        self._env = {name: os.environ[name] for name in INHERITED if name in os.environ} | {**env}
        self._last_words = b""
        self._pace = Pace(MAX_BYTES_PER_S)
        self._why = ""
        """Why its output is no more read; empty: it is, or has ended."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        """Raises OSError."""
        child = Child(self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=self._env)
        into, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        out, from_client = anyio.create_memory_object_stream[SessionMessage](0)
        try:
            input = await child.writer()
            output = await child.reader(child.stdout, MAX_MESSAGE_BYTES)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read, output, into)
                tasks.start_soon(_write, input, from_client, into)
                tasks.start_soon(self._keep_last_words, await child.reader(child.stderr))
                try:
                    yield messages, out
                finally:
                    with anyio.CancelScope(shield=True):
                        input.close()
                        if not await child.ends_within(END_S):
                            child.signal_group(signal.SIGTERM)
                        await child.end(END_S)
                    tasks.cancel_scope.cancel()
        finally:
            child.kill()
            for stream in (into, messages, out, from_client):
                stream.close()

    async def _read(self, output: asyncio.StreamReader, into: Any) -> None:
        """Passes on its messages, and an exception for each line that is none, until its output
        ends or a line is too long."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with into:
                while line := await self._line(output):
                    message: SessionMessage | Exception
                    try:
                        json = jsonrpc_message_adapter.validate_json(line, by_name=False)
                        message = SessionMessage(json)
                    except ValueError as error:
                        message = error
                    await into.send(message)

    async def _line(self, output: asyncio.StreamReader) -> bytes:
        """Returns the next line; empty after the last, or after one that is too long."""
        try:
            line = await output.readline()
        except ValueError:
            self._why = f"it has written a line of over {MAX_MESSAGE_BYTES} bytes"
            return b""
        try:
            check_values(line)
        except ValueError as error:
            self._why = f"it has written a line of {error}"
            return b""
        await self._pace.acquire(len(line))
        return line

    async def _keep_last_words(self, errors: asyncio.StreamReader) -> None:
        pace = Pace(MAX_BYTES_PER_S)
        while data := await errors.read(LAST_WORDS_BYTES):
            self._last_words = (self._last_words + data)[-LAST_WORDS_BYTES:]
            await pace.acquire(len(data))

    def failure(self, error: Exception) -> Failure | None:
        """Returns why its output is no more read, or it could not be started; None: neither."""
        if self._why:
            return Failure(self._why)
        if isinstance(error, OSError) and error.strerror:
            return Failure(f"{self._command[0]} cannot be started: {error.strerror}")
        return None

    @property
    def last_words(self) -> str:
        """Returns the last line of its standard error, for the log; empty: there is none."""
        lines = self._last_words.decode(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        return " ".join(last.split())[:MAX_LAST_WORDS_CHARS]


async def _write(input: asyncio.StreamWriter, from_client: Any, into: Any) -> None:
    try:
        async with from_client:
            async for sent in from_client:
                text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                input.write(text.encode() + b"\n")
                await input.drain()
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        into.close()  # the process may live on without its input: no request waits for it
