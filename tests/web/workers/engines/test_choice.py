"""What `auto` means on which machine."""

import re
from dataclasses import replace

import pytest

from offhook.pipeline.engines.shared.model.instructions import Instructions
from offhook.pipeline.engines.sherpa.spec import SHERPA
from offhook.pipeline.speech.engine_spec import Kind
from offhook.pipeline.speech.engines import packages
from offhook.web.config.config import Config
from offhook.web.config.engines import Asr, Tts
from offhook.web.workers.engines import machine_io
from offhook.web.workers.engines.choice import GIB, Machine, choice_for, choose

ALL = packages()
VNNI, AVX, ARM = Instructions.VNNI, Instructions.AVX, Instructions.OTHER
LAPTOP = Machine(8, 16 * GIB, VNNI, packages=ALL)
OLD = Machine(2, 8 * GIB, AVX, packages=ALL)
GPU = Machine(16, 64 * GIB, VNNI, 24 * GIB, packages=ALL)
ENGLISH, OTHERS = (
    "nvidia/nemotron-speech-streaming-en-0.6b",
    "nvidia/nemotron-3.5-asr-streaming-0.6b",
)
KROKO_EN = "csukuangfj/sherpa-onnx-streaming-zipformer-en-kroko-2025-08-06"
NOTHING = Machine(8, 16 * GIB, VNNI)
SHERPA_ONLY = Machine(8, 16 * GIB, VNNI, packages=frozenset(SHERPA.packages))


@pytest.mark.parametrize(
    ("kind", "machine", "language", "engine", "model", "why"),
    [
        ("asr", GPU, "", "qwen3-asr", "Qwen/Qwen3-ASR-0.6B", "a GPU with 24 GB"),
        ("asr", Machine(16, GIB, VNNI, 4 * GIB, ALL), "", "sherpa", KROKO_EN, "no large GPU"),
        ("asr", OLD, "", "sherpa", KROKO_EN, "2 cores .AVX without VNNI."),
        ("asr", OLD, "fr-CA", "sherpa", KROKO_EN.replace("-en-", "-fr-"), "2 cores"),
        ("asr", OLD, "ja", "pocketsphinx", "", "sherpa has no model for the language 'ja'"),
        ("asr", SHERPA_ONLY, "", "sherpa", KROKO_EN, "8 cores"),
        ("asr", LAPTOP, "", "nemotron", ENGLISH, "8 cores .VNNI., 16 GB of memory .* and no GPU"),
        ("asr", LAPTOP, "de", "nemotron", OTHERS, "no GPU"),
        ("asr", Machine(2, 8 * GIB, VNNI, packages=ALL), "en", "nemotron", ENGLISH, "2 cores"),
        ("asr", Machine(4, 8 * GIB, AVX, packages=ALL), "", "nemotron", ENGLISH, "AVX without"),
        ("asr", Machine(8, 8 * GIB, ARM, packages=ALL), "", "nemotron", ENGLISH, "QNNPACK"),
        ("asr", NOTHING, "", "pocketsphinx", "", "sherpa needs .*not installed here"),
        ("tts", GPU, "", "qwen3-tts", "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice", "24 GB"),
        ("tts", GPU, "nl", "pocket", "dutch", "no large GPU|GPU"),
        ("tts", LAPTOP, "", "pocket", "english", "8 cores .VNNI."),
        ("tts", LAPTOP, "de", "pocket", "german", "no GPU"),
        ("tts", LAPTOP, "ja", "embedded", "", "pocket has no model for the language 'ja'"),
        ("tts", OLD, "", "pocket", "english_18m_refl_2026-10", "2 cores"),
        ("tts", OLD, "fr", "embedded", "", "pocket has no model"),
        ("tts", NOTHING, "", "embedded", "", "pocket needs .*not installed"),
    ],
)
def test_the_machine_decides(
    kind: Kind, machine: Machine, language: str, engine: str, model: str, why: str
) -> None:
    choice = choose(kind, machine, language.partition("-")[0])
    assert (choice.engine, choice.model, choice.embedded) == (engine, model, not model)
    assert re.search(why, choice.why)


def test_without_a_network_only_what_is_here_is_chosen() -> None:
    offline = replace(LAPTOP, offline=True)
    choice = choose("asr", offline, "ja")
    assert choice.embedded
    choice = choose("asr", offline)
    assert "not on this machine, and nothing may be downloaded" in choice.why
    assert choose("asr", replace(offline, cached=frozenset((ENGLISH,)))).engine == "nemotron"


@pytest.mark.parametrize(
    ("machine", "language", "model"),
    [
        (LAPTOP, "", KROKO_EN),
        (GPU, "fr-CA", KROKO_EN.replace("-en-", "-fr-")),
        (SHERPA_ONLY, "en", KROKO_EN),
        (LAPTOP, "it", ""),
        (replace(LAPTOP, memory_bytes=GIB // 4), "", ""),
        (replace(LAPTOP, offline=True), "", ""),
        (replace(LAPTOP, offline=True, cached=frozenset((KROKO_EN,))), "", KROKO_EN),
    ],
)
def test_without_a_word_about_engines_only_a_small_model_comes(
    machine: Machine, language: str, model: str
) -> None:
    config = Config(asr=Asr(language=language))
    assert choice_for(config, "asr", machine).model == model
    assert choice_for(config, "tts", machine, "small").embedded


def test_the_configuration_has_a_say() -> None:
    config = Config(asr=Asr(engine="auto", device="cpu", language="pt-BR"), tts=Tts(engine="auto"))
    assert choice_for(config, "asr", GPU).model == OTHERS
    assert choice_for(config, "tts", GPU).engine == "qwen3-tts"


def test_the_cpu_is_known_without_torch() -> None:
    int8 = pytest.importorskip("offhook.pipeline.engines.shared.model.int8")
    machine = machine_io.look()
    assert machine.instructions is int8.instructions()
    assert machine.cores >= 1
    assert machine.memory_bytes > GIB // 2
    assert "torch" in machine.packages
