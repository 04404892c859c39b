"""What a speech server tells Wyoming clients about its engines. Sans-io."""

from collections.abc import Sequence

from wyoming.info import AsrModel, AsrProgram, Attribution, TtsProgram, TtsVoice

from offhook import __version__
from offhook.pipeline.speech.streams.languages import NAMES
from offhook.pipeline.speech.voice_cloning import KnownVoice
from offhook.web.wyoming.transcript import APPENDING

PROGRAM = "offhook"
"""Name of both programs, by which Home Assistant calls its entities."""
DEFAULT_VOICE = "default"
"""Name of the only voice of an engine that does not list its own."""
OURS = Attribution("offhook", "")
HUB = "https://huggingface.co"
ATTRIBUTIONS = {
    "pocketsphinx": Attribution("Carnegie Mellon University", "https://cmusphinx.github.io"),
    "flite": Attribution("Carnegie Mellon University", "http://cmuflite.org"),
    "espeak": Attribution("eSpeak NG", "https://github.com/espeak-ng/espeak-ng"),
    "qwen3-asr": Attribution("Qwen", f"{HUB}/Qwen"),
    "qwen3-tts": Attribution("Qwen", f"{HUB}/Qwen"),
    "qwen3-asr-official": Attribution("Qwen", f"{HUB}/Qwen"),
    "qwen3-tts-official": Attribution("Qwen", f"{HUB}/Qwen"),
    "nemotron": Attribution("NVIDIA", f"{HUB}/nvidia"),
    "piper": Attribution("Piper voices", f"{HUB}/rhasspy/piper-voices"),
    "kokoro": Attribution("hexgrad", f"{HUB}/hexgrad/Kokoro-82M"),
    "pocket": Attribution("Kyutai", f"{HUB}/kyutai"),
    "sherpa": Attribution("k2-fsa", "https://github.com/k2-fsa/sherpa-onnx"),
}
"""Who made the models of each engine."""


def asr_program(engine: str, model: str, languages: Sequence[str]) -> AsrProgram:
    """Describes a recognizer; one that does not list its languages is offered for those of
    Qwen3-ASR, since Home Assistant uses none without."""
    made_by = ATTRIBUTIONS.get(engine, OURS)
    heard = AsrModel(model or engine, made_by, True, model or engine, None, _tags(languages))
    return AsrProgram(
        *(PROGRAM, OURS, True, f"offhook with {engine or model}", __version__, [heard]),
        supports_transcript_streaming=engine in APPENDING,
    )


def tts_program(engine: str, voices: Sequence[KnownVoice]) -> TtsProgram:
    """Describes a synthesizer."""
    made_by = ATTRIBUTIONS.get(engine, OURS)
    known = voices or [KnownVoice(DEFAULT_VOICE)]
    return TtsProgram(
        *(PROGRAM, OURS, True, f"offhook with {engine}", __version__),
        [TtsVoice(v.name, made_by, True, v.name, None, _tags(v.languages)) for v in known],
        supports_synthesize_streaming=True,
    )


def _tags(languages: Sequence[str]) -> list[str]:
    return list(languages or NAMES)
