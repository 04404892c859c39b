"""Pocket TTS as a `Synthesizer`."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from offhook.pipeline.engines.pocket.engine import PocketEngine, Speaking
from offhook.pipeline.engines.pocket.loading_io import PocketLoading
from offhook.pipeline.engines.pocket.messages import Clause, PocketEvent
from offhook.pipeline.engines.pocket.model.licences import LICENCES
from offhook.pipeline.engines.pocket.model.voices import VoiceState
from offhook.pipeline.engines.pocket.reply import PocketReply
from offhook.pipeline.engines.shared.synthesis.replies_io import (
    EngineSpeech,
    EngineSynthesizer,
    seed_of,
)
from offhook.pipeline.engines.shared.synthesis.reply_streams_io import ThreadStreams
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.recognizer import Progress
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    KnownVoice,
    UnknownVoice,
    VoiceOptions,
)

FLUSH_S = 0.3
"""Time in s without new text after which a sentence too short for a good clause is spoken all the
same."""


class Opening(NamedTuple):
    """How a stream is to speak, see `Speaking`."""

    voice: str
    seed: int
    speed: float
    gain: float
    live: bool
    exact: bool


class PocketSynthesizer(EngineSynthesizer[Clause, PocketEvent]):
    """Pocket TTS on this machine's CPU, shared by all replies of the process. Raises EngineError if
    a setting is not supported or the shared cache cannot be used."""

    def __init__(
        self, models: TtsModels, progress: Progress = lambda fraction, doing: None
    ) -> None:
        name = f"Pocket TTS ({models.model})"
        self._thread: ThreadStreams[Clause, PocketEvent] = ThreadStreams(name, self._open_stream)
        super().__init__(name, models, self._thread)
        self._precision = models.precision
        self._loading = PocketLoading(models, progress)
        self._voices: list[str] = []
        # Owned by the inference thread:
        self._engine: PocketEngine[VoiceState]

    # --- on the event loop ---

    async def start(self) -> None:
        """Loads and warms up the model in the inference thread. Raises EngineError."""
        await self._thread.load(self._load)
        self._voices = list(self._loading.model.voices)

    @property
    def language(self) -> str:
        """ISO 639 code of the language that the model speaks."""
        return self._loading.model.config.language

    @property
    def max_streams(self) -> int | None:
        """Replies that may be spoken at once; None until it is loaded."""
        return self._loading.streams

    def voices(self) -> list[str]:
        return list(self._voices)

    async def known_voices(self) -> list[KnownVoice]:
        """Returns the voices, the default first."""
        return [
            KnownVoice(name, languages=(self.language,), licence=LICENCES[name])
            for name in self._voices
        ]

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> "PocketSpeech":
        """Opens a reply. Raises EngineFailed, UnknownVoice, and ValueError for another language
        than the model's."""
        model = self._loading.model
        config = model.config
        name = options.voice or self._voices[0]
        if name not in self._voices:
            known = ", ".join(self._voices)
            raise UnknownVoice(f"{self.name} has no voice {name!r}, only {known}")
        if options.language not in ("", config.language):
            raise ValueError(
                f"{self.name} speaks {config.language!r} only, not {options.language!r}: each "
                "language has its own model"
            )
        profile = self.profile(name, options)
        reply = PocketReply(model.tokenizer, config.max_tokens, config.language, options, profile)
        key = self.cache_key(f"{self.name} {self._precision} {name}", options)
        speech = PocketSpeech(self, reply, key, exact=options.seed is not None)
        seed, exact = seed_of(options), options.seed is not None
        speech.begin(Opening(name, seed, options.speed, profile.gain, options.live, exact))
        return speech

    async def close(self) -> None:
        await super().close()
        await self._thread.close()

    # --- in the inference thread ---

    def _load(self) -> PocketEngine[VoiceState]:
        self._engine = self._loading.load(self._thread.deliver, self._thread.fail_stream)
        return self._engine

    def _open_stream(self, opening: Opening) -> int:
        model = self._loading.model
        how = Speaking(
            model.voice(opening.voice),
            opening.seed,
            model.config.temperature,
            opening.speed,
            opening.gain,
            opening.live,
            exact=opening.exact,
        )
        return self._engine.open(how)


class PocketSpeech(EngineSpeech[Clause, PocketEvent]):
    """One reply. A sentence that is short waits for the next one, but not for long; with a seed,
    until there is more text, so that the audio does not depend on when the text came."""

    def __init__(
        self,
        synthesizer: PocketSynthesizer,
        reply: PocketReply,
        key: Callable[[str], str] | None,
        *,
        exact: bool,
    ) -> None:
        super().__init__(synthesizer, reply, key)
        self._pocket_reply = reply
        self._exact = exact
        self._flush_timer: asyncio.TimerHandle | None = None

    def write(self, text: str) -> None:
        self._stop_timer()
        super().write(text)
        if self._pocket_reply.holds_sentence and not self._exact:
            loop = asyncio.get_running_loop()
            self._flush_timer = loop.call_later(FLUSH_S, self._timeout)

    def end(self) -> None:
        self._stop_timer()
        super().end()

    def cancel(self) -> None:
        self._stop_timer()
        super().cancel()

    def _stop_timer(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()

    def _timeout(self) -> None:
        self._pocket_reply.flush()
        self._write_parts()
