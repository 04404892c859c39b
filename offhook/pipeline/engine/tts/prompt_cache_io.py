"""Builds the voice prompt of a reply and keeps the tensors of clones on the device."""

from collections import OrderedDict
from dataclasses import dataclass, replace

import torch

from offhook.pipeline.engine.tts import prompts
from offhook.pipeline.engine.tts.prompts import VoicePrompt
from offhook.pipeline.engine.tts.voices import Clone, Voice, VoiceStore
from offhook.pipeline.engine.tts.voices_io import voice_folder
from offhook.pipeline.engine.tts_models import TtsModels
from offhook.pipeline.models.qwen3_tts.model import Qwen3Tts, TtsConfig
from offhook.pipeline.speech.synthesizer import UnknownVoice, VoiceOptions

USUAL_SPEAKER = "aiden"
"""The default speaker, American English; a model without him uses its first."""
MAX_CLONES = 64
"""Clones on the device, at most 1.5 MB each; the least recently used is evicted."""


def voice_store(models: TtsModels, config: TtsConfig) -> VoiceStore:
    speakers = sorted(config.speakers, key=lambda name: name != USUAL_SPEAKER)
    return VoiceStore(
        models.model, config.kind, config.talker.hidden_size, speakers, voice_folder(models)
    )


@dataclass(frozen=True)
class VoiceRequest:
    """The voice of one reply."""

    prompt: VoicePrompt
    """The prompt, complete except for a clone's tensors."""
    language: str
    """ISO 639 code; empty: detected from the text."""
    clone: Clone | None = None


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
    return VoiceRequest(prompts.cloned_voice(config, tokenizer, bare, language), language, clone)


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


class ClonesOnDevice:
    """Uploads clones to the device; used by the inference thread."""

    def __init__(self, model: Qwen3Tts) -> None:
        self._model = model
        self._known: OrderedDict[int, tuple[Clone, torch.Tensor, torch.Tensor | None]] = (
            OrderedDict()
        )

    def complete(self, asked: VoiceRequest) -> VoicePrompt:
        clone = asked.clone
        if clone is None:
            return asked.prompt
        known = self._known.pop(id(clone), None) or (clone, *self._upload(clone))
        self._known[id(clone)] = known
        if len(self._known) > MAX_CLONES:
            self._known.popitem(last=False)
        _, vectors, codes = known
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
