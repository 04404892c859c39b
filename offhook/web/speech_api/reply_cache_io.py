"""The speech API's cache of replies, for any engine.

A repeated greeting comes from memory or, with Redis, from whichever server synthesized it first,
without waiting for the engine or loading it. The cache holds audio rather than files: one reply
serves all formats, since encoding takes a hundredth of its duration.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter
from pydantic import TypeAdapter

from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import Speech, Synthesizer, VoiceOptions
from offhook.pipeline.speech.voice.audio_cache import reply_key
from offhook.pipeline.speech.voice.audio_cache_io import ReplyCache
from offhook.pipeline.speech.voice_cloning import VoiceCloner
from offhook.web.speech_api.http.speech_request import find_voice

MAX_CHARS = 500
"""Maximum length of a text whose reply is cached; recurring texts are short, and longer ones are
synthesized each time."""
MAX_VOICES = 1000
"""Voice names whose resolution is cached; beyond it all are resolved again."""

Keep = Callable[[Sequence[Speech]], None]
"""Caches the pieces of a whole reply."""
_VOICE = TypeAdapter(tuple[str, str])
"""Name and identity of a lasting voice, as JSON."""


@dataclass(frozen=True)
class ResolvedVoice:
    """The voice that a name refers to."""

    name: str
    """The engine's name; "" is its default."""
    identity: str | None
    """Changes when the name is given to another voice; None: unknown, so nothing may be cached."""
    lasting: bool
    """Whether the name refers to this voice permanently."""


async def choose(synthesizer: Synthesizer, name: str) -> ResolvedVoice:
    """Resolves a voice name. Raises ApiError 400."""
    if not isinstance(synthesizer, VoiceCloner):
        voices = synthesizer.voices()
        # A remote server may not list its voices: then any name is passed on.
        found = find_voice(name, voices) if voices else name
        return ResolvedVoice(found, found, lasting=bool(voices))
    try:
        known = await synthesizer.known_voices()
    except EngineError:  # synthesis will report it if it fails too
        voices = synthesizer.voices()
        return ResolvedVoice(find_voice(name, voices) if voices else name, None, lasting=False)
    found = find_voice(name, [voice.name for voice in known])
    for voice in known:
        if found in ("", voice.name):
            identity = f"{voice.name} {voice.kind} {voice.created_s}"
            return ResolvedVoice(found, identity, lasting=voice.kind == "speaker")
    return ResolvedVoice(found, "", lasting=False)


class ResolvedVoices:
    """Names of voices that have been resolved; to ask the engine may take as long as the rest of a
    request."""

    def __init__(self) -> None:
        self._voices: dict[tuple[str, str], ResolvedVoice] = {}

    def find(self, engine: str, name: str) -> ResolvedVoice | None:
        """Returns the voice of a name without asking the engine; None if unknown."""
        return self._voices.get((engine, name.lower()))

    def remember(self, engine: str, name: str, chosen: ResolvedVoice) -> None:
        if chosen.lasting:
            if len(self._voices) >= MAX_VOICES:
                self._voices.clear()
            self._voices[engine, name.lower()] = chosen


class SpeechCache(ReplyCache):
    """The reply cache of one speech server, for any engine; `url` is a Redis URL or "", `mb` its
    size in MB. Raises EngineError like `ReplyCache`."""

    def __init__(self, url: str, mb: int, registry: CollectorRegistry) -> None:
        super().__init__(mb << 20, url)
        self._hits = Counter(
            "offhook_speech_cache_hits_total", "Replies found said before", registry=registry
        )
        self._misses = Counter(
            "offhook_speech_cache_misses_total", "Replies spoken anew", registry=registry
        )

    @staticmethod
    def key(engine: str, text: str, chosen: ResolvedVoice, options: VoiceOptions) -> str | None:
        """Returns the cache key; None if the reply must not be cached."""
        if len(text) > MAX_CHARS or chosen.identity is None:
            return None
        return reply_key(f"speech API: {engine}, {chosen.identity}", text, options)

    async def find(self, key: str) -> list[Speech] | None:
        """Returns the pieces of a reply from memory or Redis; None if it is not cached."""
        known = self.get(key) or await self.fetch(key)
        (self._misses if known is None else self._hits).inc()
        return known

    async def find_voice(self, engine: str, name: str) -> ResolvedVoice | None:
        """Returns the voice that another server with this engine resolved a name to; None if none
        did, or the name may be given to another voice."""
        if (found := await self.recall(_voice_key(engine, name))) is None:
            return None
        try:
            return ResolvedVoice(*_VOICE.validate_json(found), lasting=True)
        except ValueError as error:
            self.failed(error)
            return None

    def share_voice(self, engine: str, name: str, chosen: ResolvedVoice) -> None:
        """Lets other servers know the voice of a name, so that they need not load the engine for a
        reply that is cached."""
        if chosen.lasting and chosen.identity is not None:
            self.share(_voice_key(engine, name), _VOICE.dump_json((chosen.name, chosen.identity)))


def _voice_key(engine: str, name: str) -> str:
    return hashlib.sha256(json.dumps(("voice", engine, name.lower())).encode()).hexdigest()


REPLIES: web.AppKey[SpeechCache] = web.AppKey("replies", SpeechCache)
