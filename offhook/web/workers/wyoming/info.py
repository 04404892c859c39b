"""What a speech server tells Wyoming clients about its engines. Sans-io."""

from collections.abc import Sequence

from wyoming.info import AsrModel, AsrProgram, Attribution, TtsProgram, TtsVoice

from offhook import __version__
from offhook.pipeline.speech.engine_spec import Kind
from offhook.pipeline.speech.engines import has_trait, specs
from offhook.pipeline.speech.streams.languages import NAMES
from offhook.pipeline.speech.synthesizer import KnownVoice
from offhook.web.workers.wyoming.transcript import APPENDS

PROGRAM = "offhook"
"""Name of both programs, by which Home Assistant calls its entities."""
DEFAULT_VOICE = "default"
"""Name of the only voice of an engine that does not list its own."""
OURS = Attribution("offhook", "")


def asr_program(engine: str, model: str, languages: Sequence[str]) -> AsrProgram:
    """Describes a recognizer; one that does not list its languages is offered for those of
    Qwen3-ASR, since Home Assistant uses none without."""
    made_by = _made_by("asr", engine)
    heard = AsrModel(model or engine, made_by, True, model or engine, None, _tags(languages))
    return AsrProgram(
        *(PROGRAM, OURS, True, f"offhook with {engine or model}", __version__, [heard]),
        supports_transcript_streaming=has_trait(engine, APPENDS),
    )


def tts_program(engine: str, voices: Sequence[KnownVoice]) -> TtsProgram:
    """Describes a synthesizer."""
    made_by = _made_by("tts", engine)
    known = voices or [KnownVoice(DEFAULT_VOICE)]
    return TtsProgram(
        *(PROGRAM, OURS, True, f"offhook with {engine}", __version__),
        [TtsVoice(v.name, made_by, True, v.name, None, _tags(v.languages)) for v in known],
        supports_synthesize_streaming=True,
    )


def _made_by(kind: Kind, engine: str) -> Attribution:
    """Returns who made the models of an engine, as far as that is known."""
    known = next((spec.attribution for spec in specs(kind) if spec.name == engine), None)
    return OURS if known is None else Attribution(known.name, known.url)


def _tags(languages: Sequence[str]) -> list[str]:
    return list(languages or NAMES)
