"""The engine of a speech server as one stream uses it, by whatever protocol."""

from typing import Any

from loguru import logger

from offhook import __version__
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Recognizer, TurnAnswers
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.web.speech_api.admission import Kind
from offhook.web.speech_api.server_io import RequestContext, SpeechServer, fault_of


class EngineUse:
    """The server's engine of `kind`, and what is counted of its use."""

    def __init__(self, server: SpeechServer, context: RequestContext, kind: Kind) -> None:
        self.server = server
        self._context, self._kind = context, kind
        self._synthesizer: Synthesizer | None = None

    def error_words(self, error: EngineError) -> str:
        """Returns the message for the client: on a worker the engine's own, otherwise a general one
        with the id under which the log has the reason."""
        if self.server.engine_metrics is not None:
            return f"{error}: try again later" if error.fault == "full" else str(error)
        logger.warning("stream: {}", error)
        return str(fault_of(error, self._context.id))

    def identity(self) -> dict[str, Any]:
        """Returns the members of `Ready` by which clients choose among servers."""
        server = self.server
        return {"id": server.id, "version": __version__, "free": server.free(self._kind)}

    @property
    def request_id(self) -> str:
        return self._context.id

    @property
    def engine(self) -> str:
        return self.server.name(self._kind)

    @property
    def model(self) -> str:
        return self.server.model(self._kind)

    def begin_use(self) -> None:
        """Marks the stream as using the engine: somebody speaks."""

    def end_use(self) -> None:
        """Marks the stream as idle."""

    async def recognizer(self) -> Recognizer:
        """Returns the recognizer. Raises EngineError."""
        recognizer = await self.server.recognizer()
        self._context.stages.mark("loaded")
        return recognizer

    async def synthesizer(self) -> Synthesizer:
        """Returns the synthesizer. Raises EngineError."""
        self._synthesizer = await self.server.synthesizer()
        self._context.stages.mark("loaded")
        return self._synthesizer

    def voices(self) -> list[str]:
        """Returns the synthesizer's voices; empty before it has loaded."""
        return self._synthesizer.voices() if self._synthesizer is not None else []

    def count_audio(self, seconds: float) -> None:
        self.server.count_audio(self._context, seconds)
        self.server.count_stream_audio(seconds)

    def final_sent(self, seconds: float) -> None:
        """Records the time from a flush to its final."""
        self.server.final_sent(seconds)

    @property
    def turns(self) -> TurnAnswers | None:
        """What answers whether turns are over; None if nothing does."""
        return self.server.turns

    def turn_judged(self, seconds: float, answered: bool) -> None:
        """Records the time from a question whether a turn is over to its answer."""
        self.server.turn_judged(seconds, answered)

    def reply_began(self, seconds: float) -> None:
        """Records the time from a reply's start to its first audio."""
        self._context.stages.mark("first")
        self.server.reply_began(seconds)

    def reply_ended(self, reason: str) -> None:
        self._context.stages.mark("inferred")
        self.server.reply_ended(reason)
