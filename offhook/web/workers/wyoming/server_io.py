"""Listens for clients of the Wyoming protocol, such as Home Assistant.

The protocol has no keys, so only clients of this machine and of configured private networks are
admitted.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from loguru import logger
from wyoming.error import Error
from wyoming.info import AsrProgram, Info, TtsProgram

from offhook.pipeline.speech.errors import EngineError
from offhook.web.http.listening_io import BACKLOG
from offhook.web.http.networks import Network, may_connect
from offhook.web.http.shares import Holders, ShareExceeded, by_address
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.server_io import RETRY_AFTER_S, SpeechServer
from offhook.web.workers.engines.remote_engine_io import until_loaded
from offhook.web.workers.wyoming.connection_io import READ_BYTES, Connection
from offhook.web.workers.wyoming.events import to_bytes
from offhook.web.workers.wyoming.info import asr_program, tts_program

MAX_CONNECTIONS = 128
"""Clients at a time, of which those of one address have their share; further ones get an error and
are disconnected."""
LOADING_S = 10.0
"""Time in s that `describe` waits for engines that are loading. Home Assistant waits 1 s, asks four
times, and tries again later."""
REFRESH_S = 0.5
"""Time in s that it waits for news of engines that it knows already."""


class WyomingServer:
    """The Wyoming clients of a speech server."""

    def __init__(self, server: SpeechServer, networks: Sequence[Network]) -> None:
        self._server, self._networks = server, networks
        self._asr: AsrProgram | None = None
        self._tts: TtsProgram | None = None
        """The engines when they were last loaded."""
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._loading: asyncio.Task[None] | None = None
        self._listening: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> str:
        """Accepts clients and loads the engines, whose voices they ask for first. Returns the
        address. Raises OSError."""
        self._listening = await asyncio.start_server(
            self._connected, host, port, limit=READ_BYTES, backlog=BACKLOG
        )
        self._loading = asyncio.create_task(until_loaded(self._refresh), name="wyoming engines")
        host, port = self._listening.sockets[0].getsockname()[:2]
        return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        for connection in self._connections.values():
            connection.stop()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = writer.get_extra_info("peername")
        peer = address[0] if address else ""
        if not peer or not may_connect(peer, self._networks):
            self._report(f"{peer} is in none of the networks of [speech] wyoming_networks")
            writer.transport.abort()
            return
        holders = by_address(peer)
        if words := self._too_many(holders):
            self._report(words)
            writer.write(to_bytes(Error(words, "connections_full").event()))
            writer.close()
            return
        connection = Connection(self._server, self.info, reader, writer, peer, holders)
        task = asyncio.create_task(connection.run(), name="wyoming client")
        self._connections[task] = connection
        task.add_done_callback(self._connections.pop)

    def _too_many(self, holders: Holders) -> str:
        """Returns why another client cannot be served; empty if it can."""
        if len(self._connections) >= MAX_CONNECTIONS:
            return f"{MAX_CONNECTIONS} clients are connected: try again later"
        held = (connection.holders for connection in self._connections.values())
        try:
            self._server.admission.shares.check(holders, held, MAX_CONNECTIONS, "connections")
        except ShareExceeded as fault:
            return str(fault)
        return ""

    def _report(self, words: str) -> None:
        line = logger.bind(a_minute="refused")
        line.warning("a wyoming client was refused: {}", words)

    # --- what is offered ---

    async def info(self) -> Info:
        """Describes the engines, as they were if they are not loaded now. Raises ApiError 503 while
        none was."""
        is_known = self._asr is not None or self._tts is not None
        with suppress(TimeoutError, EngineError):
            async with asyncio.timeout(REFRESH_S if is_known else LOADING_S):
                await self._refresh()
        if self._asr is None and self._tts is None:
            words = "the speech engines are still loading: try again later"
            raise ApiError(503, words, code="engine_loading", retry_after_s=RETRY_AFTER_S)
        asr, tts = self._asr, self._tts
        return Info([asr] if asr is not None else [], [tts] if tts is not None else [])

    async def _refresh(self) -> None:
        """Asks the engines, of which one may fail; while one is loading, nothing changes. Raises
        EngineError."""
        asr, tts = await asyncio.gather(
            self._asr_program(), self._tts_program(), return_exceptions=True
        )
        if not isinstance(asr, BaseException):
            self._asr = asr
        if not isinstance(tts, BaseException):
            self._tts = tts
        for error in (asr, tts):
            if isinstance(error, BaseException):
                raise error

    async def _asr_program(self) -> AsrProgram | None:
        if "transcription" not in self._server.engines:
            return None
        await self._server.recognizer()
        engine, model = self._server.name("transcription"), self._server.model("transcription")
        return asr_program(engine, model, self._server.languages("transcription"))

    async def _tts_program(self) -> TtsProgram | None:
        if "speech" not in self._server.engines:
            return None
        voices = await (await self._server.synthesizer()).known_voices()
        return tts_program(self._server.name("speech"), voices)
