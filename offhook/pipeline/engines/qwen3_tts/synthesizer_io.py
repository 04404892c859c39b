"""Qwen3-TTS as a `Synthesizer`, with its engine in this process."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime

import torch

from offhook.pipeline.engines.qwen3_tts.engine import TtsEngine
from offhook.pipeline.engines.qwen3_tts.loading_io import TtsLoading
from offhook.pipeline.engines.qwen3_tts.model.model import Qwen3Tts
from offhook.pipeline.engines.qwen3_tts.prompts import LANGUAGES, VoicePrompt
from offhook.pipeline.engines.qwen3_tts.replies_io import (
    Opening,
    Qwen3Replies,
    Qwen3Speech,
    ReplySettings,
    VoiceRequest,
    name_of,
)
from offhook.pipeline.engines.qwen3_tts.reply import WordTokens
from offhook.pipeline.engines.qwen3_tts.voices import Clone, Reference, Voice
from offhook.pipeline.engines.qwen3_tts.voices_io import Cloning
from offhook.pipeline.engines.shared.synthesis.messages import EngineEvent
from offhook.pipeline.engines.shared.synthesis.reply_streams_io import ThreadStreams
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.recognizer import Progress
from offhook.pipeline.speech.synthesizer import KnownVoice, VoiceOptions
from offhook.pipeline.speech.voice_cloning import Sample

MAX_CLONES = 64
"""Clones on the device, at most 1.5 MB each; the least recently used is evicted."""


class Qwen3Synthesizer(Qwen3Replies):
    """Qwen3-TTS on one device, shared by all replies of the process. Raises EngineError if the
    device does not exist or the shared cache cannot be used."""

    cloning: Cloning | None = None
    """None until `start` has finished."""
    loading: type[TtsLoading] = TtsLoading

    def __init__(
        self, models: TtsModels, progress: Progress = lambda fraction, doing: None
    ) -> None:
        self._thread: ThreadStreams[WordTokens, EngineEvent] = ThreadStreams(
            name_of(models), self._open_stream
        )
        super().__init__(models, self._thread)
        self._models = models
        self._loading = self.loading(models, progress)
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="voice encoder")
        # Owned by the inference thread:
        self._engine: TtsEngine
        self._clones: ClonesOnDevice

    # --- on the event loop ---

    async def start(self) -> None:
        """Loads and warms up the model in the inference thread. Raises EngineError."""
        await self._thread.load(self._load)
        of = self._loading
        await self.begin(ReplySettings(self._models, of.config, of.tokenizer, of.sampling()))
        assert self.store is not None
        self.cloning = Cloning(self.store, self._encode)

    @property
    def max_streams(self) -> int | None:
        """Replies that may be spoken at once; None until it is loaded."""
        return self._loading.streams

    # --- voices; see VoiceCloner ---

    async def known_voices(self) -> list[KnownVoice]:
        if self.store is None:
            return []
        return [_known(voice) for voice in await asyncio.to_thread(self.store.voices)]

    async def add_voice(self, name: str, sample: Sample, language: str = "") -> KnownVoice:
        return _known(await self._started_cloning().add(name, sample, language))

    async def remove_voice(self, name: str) -> None:
        self._started_cloning()
        assert self.store is not None
        self.store.remove(name)

    async def open_clone(self, sample: Sample, options: VoiceOptions) -> Qwen3Speech:
        cloning = self._started_cloning()
        assert self.store is not None
        self.store.check_language(options.language)
        voice = await cloning.nameless(sample)
        return self.open_with(replace(options, cache=False), voice)

    def _started_cloning(self) -> Cloning:
        assert self.cloning is not None
        return self.cloning

    async def close(self) -> None:
        await super().close()
        await self._thread.close()
        self._encoder.shutdown(wait=False, cancel_futures=True)

    async def _encode(self, reference: Reference) -> Clone:
        encode = self._loading.encode
        assert encode is not None  # the store refuses clones for a model without encoders
        return await asyncio.get_running_loop().run_in_executor(self._encoder, encode, reference)

    # --- in the inference thread ---

    def _load(self) -> "_Streams":
        self._engine = self._loading.load(self._thread.deliver)
        self._clones = ClonesOnDevice(self._loading.model)
        return _Streams(self._engine)

    def _open_stream(self, opening: Opening) -> int:
        prompt = self._clones.complete(opening.voice)
        return self._engine.open(prompt, opening.sampling, opening.seed, opening.live)


def _known(voice: Voice) -> KnownVoice:
    created = datetime.fromisoformat(voice.created).timestamp() if voice.created else 0
    languages = (voice.language,) if voice.language else tuple(LANGUAGES)
    return KnownVoice(voice.name, voice.kind, languages, int(created))


class _Streams:
    """Adapts the engine to `SpeakingEngine`."""

    def __init__(self, engine: TtsEngine) -> None:
        self.timer = engine.timer
        self.end = engine.end
        self.cancel = engine.cancel
        self._engine = engine

    def write(self, number: int, part: WordTokens, now: float) -> None:
        self._engine.write(number, part.tokens, part.ends, now)

    def turn(self, clock: Callable[[], float]) -> bool:
        return self._engine.turn(clock())


class ClonesOnDevice:
    """Uploads clones to the device; used by the inference thread."""

    def __init__(self, model: Qwen3Tts) -> None:
        self._model = model
        self._known: OrderedDict[str, tuple[torch.Tensor, torch.Tensor | None]] = OrderedDict()

    def complete(self, asked: VoiceRequest) -> VoicePrompt:
        clone = asked.clone
        if clone is None:
            return asked.prompt
        known = self._known.pop(asked.digest, None) or self._upload(clone)
        self._known[asked.digest] = known
        if len(self._known) > MAX_CLONES:
            self._known.popitem(last=False)
        vectors, codes = known
        return replace(asked.prompt, vectors=vectors, reference=codes)

    @torch.inference_mode()
    def _upload(self, clone: Clone) -> tuple[torch.Tensor, torch.Tensor | None]:
        weight = self._model.text
        vectors = torch.from_numpy(clone.embedding).to(weight)[None]
        codes = None
        if clone.codes is not None:
            codes = torch.from_numpy(clone.codes).long().to(weight.device)
            vectors = torch.cat((vectors, self._model.embed_frames(codes)))
        if weight.is_cuda:
            torch.cuda.current_stream().synchronize()  # the runner has streams of its own
        return vectors, codes
