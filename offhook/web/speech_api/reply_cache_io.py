"""Replies of the speech API that were said before, whichever engine spoke them.

A greeting costs its speaking once: later it comes from memory or, with Redis, from whoever said it
first, and neither waits for the engine nor wakes it. What is kept is sound, not files: the same
reply serves all formats, and to encode it takes a hundredth of its length.
"""

from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from offhook.pipeline.speech.recognizer import EngineError
from offhook.pipeline.speech.synthesizer import Speech, Synthesizer, VoiceOptions
from offhook.pipeline.speech.voice.audio_cache import reply_key
from offhook.pipeline.speech.voice.audio_cache_io import ReplyCache
from offhook.pipeline.speech.voice_cloning import ClonesVoices
from offhook.web.speech_api.http.speech_request import find_voice

CACHE_BYTES = 32 << 20
"""Eleven minutes of speech."""
MAX_CHARS = 500
"""Of a text whose reply is kept: what is said again is short."""
MAX_VOICES = 1000
"""Names of voices whose meaning is kept; with more, all are looked up anew."""


@dataclass(frozen=True)
class Chosen:
    """The voice that a name means."""

    name: str
    """As the engine has it; "" is its usual one."""
    identity: str | None
    """Another when somebody else gets the name; None: not known, so nothing may be kept."""
    lasting: bool
    """The name always means this voice."""


async def choose(synthesizer: Synthesizer, name: str) -> Chosen:
    """Raises ApiError 400."""
    if not isinstance(synthesizer, ClonesVoices):
        voices = synthesizer.voices()
        # A server elsewhere may not say which voices it has: then it is asked for any.
        found = find_voice(name, voices) if voices else name
        return Chosen(found, found, lasting=bool(voices))
    try:
        known = await synthesizer.known_voices()
    except EngineError:  # the reply will say it better, if it cannot be spoken either
        voices = synthesizer.voices()
        return Chosen(find_voice(name, voices) if voices else name, None, lasting=False)
    found = find_voice(name, [voice.name for voice in known])
    for voice in known:
        if found in ("", voice.name):
            identity = f"{voice.name} {voice.kind} {voice.created_s}"
            return Chosen(found, identity, lasting=voice.kind == "speaker")
    return Chosen(found, "", lasting=False)


class SpeechCache(ReplyCache):
    """The replies of one speech server, whichever engine spoke them, and the voices that names
    mean. `url` is that of a Redis, or "". Raises EngineError as `ReplyCache` does."""

    def __init__(self, url: str, registry: CollectorRegistry) -> None:
        super().__init__(CACHE_BYTES, url)
        self._voices: dict[tuple[str, str], Chosen] = {}
        self._hits = Counter(
            "offhook_speech_cache_hits_total", "Replies found said before", registry=registry
        )
        self._misses = Counter(
            "offhook_speech_cache_misses_total", "Replies spoken anew", registry=registry
        )

    def voice(self, engine: str, name: str) -> Chosen | None:
        """What the name is known to mean, without asking the engine."""
        return self._voices.get((engine, name.lower()))

    def remember(self, engine: str, name: str, chosen: Chosen) -> None:
        if chosen.lasting:
            if len(self._voices) >= MAX_VOICES:
                self._voices.clear()
            self._voices[engine, name.lower()] = chosen

    @staticmethod
    def key(engine: str, text: str, chosen: Chosen, options: VoiceOptions) -> str | None:
        """None: the reply is not to be kept."""
        if len(text) > MAX_CHARS or chosen.identity is None:
            return None
        return reply_key(f"speech API: {engine}, {chosen.identity}", text, options)

    async def find(self, key: str) -> list[Speech] | None:
        """The pieces of a reply, from memory or Redis; None when it is in neither."""
        known = self.get(key) or await self.fetch(key)
        (self._misses if known is None else self._hits).inc()
        return known


REPLIES: web.AppKey[SpeechCache] = web.AppKey("replies", SpeechCache)
