"""Replies of Qwen3-TTS, over the streams of its engine, which may be in another process."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from offhook.pipeline.engines.qwen3_tts import prompts
from offhook.pipeline.engines.qwen3_tts.model.config import TtsConfig
from offhook.pipeline.engines.qwen3_tts.prompts import LANGUAGES, VoicePrompt
from offhook.pipeline.engines.qwen3_tts.reply import Reply, WordTokens
from offhook.pipeline.engines.qwen3_tts.voices import Clone, Voice, VoiceStore
from offhook.pipeline.engines.qwen3_tts.voices_io import voice_folder
from offhook.pipeline.engines.shared.qwen3.token_stream import Vocabulary
from offhook.pipeline.engines.shared.synthesis.far_streams_io import (
    FarStreams,
    FromEngine,
    StreamsDoor,
    ToEngine,
)
from offhook.pipeline.engines.shared.synthesis.messages import EngineEvent, Sampling
from offhook.pipeline.engines.shared.synthesis.replies_io import (
    EngineSpeech,
    EngineSynthesizer,
    seed_of,
)
from offhook.pipeline.engines.shared.synthesis.reply_streams_io import ReplyStreams
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, UnknownVoice, VoiceOptions
from offhook.pipeline.speech.text.text_language import language_of

USUAL_SPEAKER = "aiden"
"""The default speaker, American English; a model without him uses its first."""

Qwen3Speech = EngineSpeech[WordTokens, EngineEvent]
"""One reply."""


def name_of(models: TtsModels) -> str:
    return f"Qwen3-TTS ({models.model})"


def voice_store(models: TtsModels, config: TtsConfig) -> VoiceStore:
    speakers = sorted(config.speakers, key=lambda name: name != USUAL_SPEAKER)
    return VoiceStore(
        *(models.model, config.kind, config.talker.hidden_size, speakers, voice_folder(models)),
        prompts.languages_of(config),
    )


@dataclass(frozen=True)
class VoiceRequest:
    """The voice of one reply."""

    prompt: VoicePrompt
    """The prompt, complete except for a clone's tensors."""
    language: str
    """ISO 639 code; empty: detected from the text."""
    clone: Clone | None = None
    digest: str = ""
    """That of the clone, see `Voice`."""


def request_voice(
    store: VoiceStore,
    config: TtsConfig,
    tokenizer: prompts.Tokenizer,
    options: VoiceOptions,
    voice: Voice | None = None,
) -> VoiceRequest:
    """Returns the voice prompt for the options; `voice` overrides the one they name. Raises
    UnknownVoice, ValueError for what the model does not support, and VoiceError."""
    asked = _request_voice(store, config, tokenizer, options, voice)
    if options.whole_text and asked.clone is None:
        return replace(asked, prompt=prompts.with_whole_text(config, asked.prompt))
    return asked


def _request_voice(
    store: VoiceStore,
    config: TtsConfig,
    tokenizer: prompts.Tokenizer,
    options: VoiceOptions,
    voice: Voice | None,
) -> VoiceRequest:
    voice = voice or _voice(store, config, options.voice)
    if voice is None:
        prompt = prompts.described_voice(config, tokenizer, options.instructions, options.language)
        return VoiceRequest(prompt, options.language)
    language = options.language or voice.language
    if voice.kind == "speaker":
        named = prompts.named_voice(config, tokenizer, voice.name, language, options.instructions)
        return VoiceRequest(named, language)
    if voice.kind == "design":
        told = "\n".join(filter(None, (voice.text, options.instructions)))
        return VoiceRequest(prompts.described_voice(config, tokenizer, told, language), language)
    clone = store.clone(voice)
    frames = 0 if clone.codes is None else len(clone.codes)
    bare = prompts.Clone(voice.digest, None, frames, voice.text)
    return VoiceRequest(
        prompts.cloned_voice(config, tokenizer, bare, language), language, clone, voice.digest
    )


def _voice(store: VoiceStore, config: TtsConfig, name: str) -> Voice | None:
    """Returns the named voice; None for one described by the instructions."""
    if name:
        return store.voice(name)
    if config.kind == "voice_design":
        return None
    known = store.voices()
    if not known:
        raise UnknownVoice(f"{store.model} has no voices of its own: clone one")
    return known[0]


@dataclass(frozen=True)
class Opening:
    """How the engine opens the stream of a reply."""

    voice: VoiceRequest
    sampling: Sampling
    seed: int
    live: bool


class SpeechTokenizer(prompts.Tokenizer, Protocol):
    """Tokenizes prompts, and text that is still being written."""

    @property
    def vocabulary(self) -> Vocabulary: ...


@dataclass(frozen=True)
class ReplySettings:
    """What replies need of a loaded model."""

    models: TtsModels
    config: TtsConfig
    tokenizer: SpeechTokenizer
    sampling: Sampling

    async def connect(
        self, send: Callable[[ToEngine], None]
    ) -> "tuple[Qwen3Replies, Callable[[FromEngine], None]]":
        """Returns the replies in another process than the engine, and what receives for them.
        Raises EngineError."""
        streams: FarStreams[WordTokens, EngineEvent] = FarStreams(send)
        return await self.replies(streams), streams.receive

    async def replies(self, streams: ReplyStreams[WordTokens, EngineEvent]) -> "Qwen3Replies":
        """Returns what opens replies over streams of the model, in whatever process. Raises
        EngineError."""
        made = Qwen3Replies(self.models, streams)
        await made.begin(self)
        return made


class Qwen3Replies(EngineSynthesizer[WordTokens, EngineEvent]):
    """Opens replies with the voices of the model and of its folder. Raises EngineError if the
    shared cache cannot be used."""

    def __init__(self, models: TtsModels, streams: ReplyStreams[WordTokens, EngineEvent]) -> None:
        super().__init__(name_of(models), models, streams)
        self.far_settings: ReplySettings
        """What opens replies, in this process or another; set by `begin`."""
        self.store: VoiceStore | None = None
        """The voices and their clones; None until `begin`."""

    async def begin(self, settings: ReplySettings) -> None:
        """Makes replies possible, once the model has loaded."""
        self.far_settings = settings
        self.store = voice_store(settings.models, settings.config)
        await asyncio.to_thread(language_of, "two words", LANGUAGES)  # loads its model

    def door(self, send: Callable[[FromEngine], None]) -> StreamsDoor[WordTokens, EngineEvent]:
        """Returns the streams for the replies of another process."""
        return StreamsDoor(self.streams, send)

    async def start(self) -> None:
        """The engine has been started."""

    def voices(self) -> list[str]:
        return [voice.name for voice in self.store.voices()] if self.store else []

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> Qwen3Speech:
        """Opens a reply. Raises EngineFailed, and VoiceError for a damaged clone."""
        return self.open_with(options)

    def open_with(self, options: VoiceOptions, voice: Voice | None = None) -> Qwen3Speech:
        """Opens a reply; `voice` overrides the one that the options name."""
        of = self.far_settings
        assert self.store is not None
        asked = request_voice(self.store, of.config, of.tokenizer, options, voice)
        key = asked.prompt.key
        profile = self.profile(key, options)
        reply = Reply(of.tokenizer.vocabulary, asked.language, options, profile)
        speech = Qwen3Speech(self, reply, self.cache_key(f"{self.name} {key!r}", options))
        speech.begin(Opening(asked, of.sampling, seed_of(options), options.live))
        return speech
