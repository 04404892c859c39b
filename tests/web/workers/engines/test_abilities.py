"""What an engine cannot do is said with its key before anybody calls, and what would do it."""

import re
from typing import Any

import pytest

from offhook.pipeline.engines.embedded import espeak_io
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.engines.embedded.spec import POCKETSPHINX
from offhook.pipeline.engines.qwen3_tts.prompts import LANGUAGES
from offhook.pipeline.engines.qwen3_tts.spec import LANGUAGES as QWEN3_TTS_LANGUAGES
from offhook.pipeline.speech.engine_spec import KINDS
from offhook.pipeline.speech.engines import all_specs, spec_of
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import StreamOptions
from offhook.pipeline.speech.synthesizer import VoiceOptions
from offhook.web.config.config import Config, ConfigError
from offhook.web.edge import server_io
from offhook.web.workers.engines.abilities_io import (
    check_engines,
    faults_of,
    meanwhile,
)
from offhook.web.workers.engines.choice import model_for, rows_of
from offhook.web.workers.engines.engines_io import open_recognizer, open_synthesizer

KROKO_DE = "csukuangfj/sherpa-onnx-streaming-zipformer-de-kroko-2025-08-06"
NEMOTRON = "nvidia/nemotron-3.5-asr-streaming-0.6b"


@pytest.mark.parametrize(
    ("table", "worse"),
    [
        ({}, ""),
        ({"asr": {"language": "en-GB"}}, ""),
        (
            {"asr": {"language": "de-AT"}},
            "Until then pocketsphinx hears en, not 'de-AT'",
        ),
        ({"sip": {"udp": 5060}}, POCKETSPHINX.weak_on_phones),
    ],
)
def test_what_callers_put_up_with_until_an_engine_is_there_is_known(
    table: dict[str, Any], worse: str
) -> None:
    config = Config.model_validate(table)
    assert meanwhile(config, "asr") == worse
    assert meanwhile(config, "tts") == ""


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (
            {"tts": {"engine": "flite"}, "agents": {"de": {"language": "de"}}},
            "agents.de.language: pocketsphinx hears en",
        ),
        (
            {"tts": {"engine": "flite"}, "agent": {"voice": "marin"}},
            "agent.voice: flite has no voice 'marin'",
        ),
        (
            {"tts": {"engine": "pocket"}, "agents": {"a": {"voice": "rms"}}},
            "agents.a.voice: pocket has no voice 'rms'",
        ),
    ],
)
def test_an_agent_asks_no_more_than_the_engines_of_all_calls_can(
    table: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(fault)}"):
        check_engines(Config.model_validate(table))


def test_what_the_engines_of_all_calls_can_an_agent_may_ask() -> None:
    agents = {
        "a": {"language": "en-US", "voice": "rms"},
        "r": {"kind": "realtime", "model": "m", "voice": "marin"},
    }
    check_engines(Config.model_validate({"tts": {"engine": "flite"}, "agents": agents}))
    check_engines(Config.model_validate({"asr": {"engine": "auto"}, "agent": {"language": "en"}}))


@pytest.mark.parametrize(
    ("table", "faults"),
    [
        (
            {"asr": {"engine": "pocketsphinx", "language": "de"}},
            [
                r"asr.language: pocketsphinx hears en, not 'de': set \[asr\] engine = .qwen3-"
                rf".*nemotron\" with model = \"{NEMOTRON}\" \(40 locales\).*model = .{KROKO_DE}.; "
                'engine = "auto" takes the best that this machine can run'
            ],
        ),
        ({"asr": {"language": "en-GB"}, "tts": {"language": "en"}}, []),
        (
            {"asr": {"engine": "nemotron", "language": "de"}},
            ["asr.language: nemotron hears en, not 'de'"],
        ),
        ({"asr": {"engine": "nemotron", "model": NEMOTRON, "language": "de"}}, []),
        (
            {"asr": {"engine": "sherpa", "language": "fr-CA"}},
            ["asr.language: sherpa hears en, not 'fr-CA'.*-fr-kroko"],
        ),
        ({"asr": {"engine": "sherpa", "model": KROKO_DE, "language": "de-AT"}}, []),
        (
            {"asr": {"engine": "qwen3-asr", "language": "sw"}},
            ["asr.language: qwen3-asr hears ar, .*zh, not 'sw'.*40 locales"],
        ),
        (
            {"asr": {"engine": "qwen3-asr-official", "language": "sw"}},
            ["asr.language: qwen3-asr-official hears ar, .*not 'sw'"],
        ),
        (
            {"asr": {"engine": "pocketsphinx", "model": "large"}},
            ["asr.model: pocketsphinx has the model en-us only"],
        ),
        (
            {"tts": {"engine": "flite", "language": "de"}},
            [
                "tts.language: flite speaks en, not 'de'.*qwen3-tts.*pocket.*\"german\".*"
                'engine = "espeak"'
            ],
        ),
        ({"tts": {"language": "de"}}, []),  # eSpeak NG
        ({"tts": {"language": "qqq"}}, ["tts.language: .* not 'qqq': no engine here is known"]),
        (
            {"tts": {"engine": "flite", "voice": "alba"}},
            ["tts.voice: flite has no voice 'alba', only slt, rms, awb.*\"pocket\""],
        ),
        (
            {"tts": {"engine": "espeak", "voice": "fr", "language": "de"}},
            ["tts.language: the voice fr of espeak speaks fr, not 'de'"],
        ),
        ({"tts": {"engine": "espeak", "voice": "fr"}}, []),
        ({"tts": {"engine": "espeak", "model": "x"}}, ["tts.model: espeak has voices and no"]),
        (
            {"tts": {"engine": "pocket", "language": "de", "voice": "nobody"}},
            [
                "tts.voice: pocket has no voice 'nobody', only alba",
                "tts.language: pocket speaks en, not 'de'.*\"german\"",
            ],
        ),
        ({"tts": {"engine": "pocket", "model": "german", "language": "de"}}, []),
        ({"tts": {"engine": "pocket", "model": "klingon"}}, ["tts.model: .*klingon.*english"]),
        (
            {"tts": {"engine": "qwen3-tts", "language": "nl"}},
            ["tts.language: qwen3-tts speaks zh, .* it, not 'nl'.*\"dutch\""],
        ),
        # Known once it has loaded: a worker elsewhere, a model of one's own, a choice.
        ({"asr": {"url": "http://127.0.0.1:1", "language": "de"}}, []),
        ({"asr": {"engine": "nemotron", "model": "./mine", "language": "de"}}, []),
        ({"asr": {"engine": "auto", "language": "de"}, "tts": {"engine": "auto"}}, []),
        # By default a small model of the language comes, where there is one.
        ({"asr": {"language": "de-AT"}}, []),
        ({"asr": {"language": "it"}}, ["asr.language: pocketsphinx hears en, not 'it'"]),
    ],
)
def test_what_an_engine_cannot_do_is_named_with_its_key(
    table: dict[str, Any], faults: list[str]
) -> None:
    config = Config.model_validate(table)
    found = [fault for kind in KINDS for fault in faults_of(config, kind)]
    assert len(found) == len(faults), found
    for wanted, fault in zip(faults, found, strict=True):
        assert re.match(wanted, fault), fault
    if not faults:
        check_engines(config)
        return
    with pytest.raises(ConfigError, match=faults[0]):
        server_io.check(config)  # before anything is loaded


def test_a_machine_without_a_voice_may_still_hear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens a voice is told what to install; who does not needs none."""

    def missing(voice: FliteSynthesizer) -> None:
        raise EngineError("no libflite1 here")

    monkeypatch.setattr(FliteSynthesizer, "load", missing)
    monkeypatch.setattr(espeak_io, "find_spec", lambda name: None)
    check_engines(Config())
    with pytest.raises(EngineError, match="there is no voice here"):
        open_synthesizer()


def test_what_auto_has_fallen_back_to_is_judged_as_well() -> None:
    config = Config.model_validate({"asr": {"engine": "auto", "language": "ja"}})
    assert faults_of(config, "asr", "pocketsphinx")[0].startswith("asr.language: pocketsphinx")
    assert faults_of(config, "asr", "nemotron", NEMOTRON) == []


def test_every_row_of_auto_has_a_model_for_its_languages() -> None:
    """A wrong row would be refused by its own engine, once somebody calls."""
    for kind in KINDS:
        for spec, need in rows_of(kind):
            for language in need.models:
                can = spec.abilities(model_for(spec, need, language))
                assert language == "*" or not can.languages or language in can.languages


def test_what_is_known_beforehand_is_what_the_models_code_says() -> None:
    assert set(QWEN3_TTS_LANGUAGES) == set(LANGUAGES)


async def test_what_is_known_of_the_embedded_engines_is_what_they_do() -> None:
    """Whatever is told of an engine beforehand, its first stream bears out."""
    for engine in ("flite", "espeak"):
        can = spec_of("tts", engine).abilities()
        voice = open_synthesizer(engine)
        assert voice.voices() == list(can.voices)
        for language in ("en", "de", "ja", "qqq"):
            options = VoiceOptions(language=language)
            if language in can.languages:
                voice.open(options).cancel()
            else:
                with pytest.raises(ValueError, match=r"not '(de|ja|qqq)'"):
                    voice.open(options)
        await voice.close()
    can = spec_of("asr", "pocketsphinx").abilities()
    recognizer = open_recognizer("pocketsphinx", Config().asr.models(""))
    for language in ("en", "en-GB", "de"):
        if language[:2] in can.languages:
            await (await recognizer.open(StreamOptions(language=language))).close()
        else:
            with pytest.raises(ValueError, match="hears English"):
                await recognizer.open(StreamOptions(language=language))
    await recognizer.close()
    own = {spec.name for spec in all_specs() if spec.only_models is not None}
    assert own == {"pocketsphinx", "embedded", "flite", "espeak"}
