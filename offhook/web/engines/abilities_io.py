"""What each engine can do, as far as that is known before it loads, and what a configuration asks
of an engine beyond it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from offhook.pipeline.engine.onnx_voice.voices import PIPER_NAME
from offhook.pipeline.models.hub.catalogue import ASR_LANGUAGES, KOKORO_LANGUAGES, of_name
from offhook.pipeline.models.pocket.config import config_named
from offhook.pipeline.models.pocket.licences import listed as pocket_voices
from offhook.pipeline.speech.embedded.embedded_speech_io import listed
from offhook.pipeline.speech.embedded.espeak_io import is_installed, voices_here
from offhook.pipeline.speech.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.speech.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.speech.recognizer import EngineError
from offhook.web.config.config import (
    AUTO,
    SMALL,
    Asr,
    AsrEngine,
    Config,
    ConfigError,
    Tts,
    TtsEngine,
)
from offhook.web.engines.choice import EMBEDDED_OF, KINDS, ROWS, Kind, Row, rows_of
from offhook.web.engines.engines_io import MODELS, at_hand, check_model

VERB: Mapping[Kind, str] = {"asr": "hears", "tts": "speaks"}
WITH_VOICES: tuple[TtsEngine, ...] = ("flite", "espeak", "pocket")
"""Engines of which the voices are known before they load."""
VERBS: Mapping[Kind, str] = {"asr": "hear", "tts": "speak"}
WEAK_ON_PHONES = (
    "PocketSphinx understands little on a telephone line: 43 % of the words of read speech are "
    "wrong there, 24 % in a browser's call. Any other [asr] engine is better (docs/which-engine.md)"
)


@dataclass(frozen=True)
class Abilities:
    """What an engine can do with a model."""

    languages: tuple[str, ...] = ()
    """ISO 639 codes; empty: known once it has loaded."""
    voices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The languages of each voice; empty: known once it has loaded."""


def abilities(engine: AsrEngine | TtsEngine, model: str) -> Abilities:
    """Returns what is known of an engine with a model, "" for its usual one. Raises EngineError for
    a model that it does not have."""
    model = model or MODELS.get(engine, "")
    check_model(engine, model)
    match engine:
        case "pocketsphinx":
            return Abilities(PocketSphinxRecognizer.languages)
        case "qwen3-asr" | "qwen3-asr-official":
            return Abilities(ASR_LANGUAGES)
        case "pocket":
            return _pocket(model)
        case "kokoro":
            return Abilities(KOKORO_LANGUAGES)
        case "piper":
            name = PIPER_NAME.fullmatch(model)
            return Abilities((name["language"],) if name else ())
        case "flite":
            return _with_voices(FliteSynthesizer.spoken)
        case "espeak":
            return _with_voices(voices_here())
    published = of_name(model)
    return Abilities() if published is None else Abilities(published.languages)


def _with_voices(voices: Mapping[str, tuple[str, ...]]) -> Abilities:
    codes = dict.fromkeys(code for spoken in voices.values() for code in spoken)
    return Abilities(tuple(codes), voices)


def _pocket(model: str) -> Abilities:
    """Raises EngineError for an unknown model."""
    language, folder = config_named(model).language, Path(model).expanduser()
    here = {path.stem for path in (folder / "embeddings").glob("*.safetensors")}
    names = [name for name in pocket_voices(language) if not folder.is_dir() or name in here]
    return _with_voices(dict.fromkeys(names, (language,)))


def check_engines(config: Config) -> None:
    """Raises ConfigError if an engine is asked for what it cannot do, with a line for each key;
    what only a loaded engine knows is left to its first stream."""
    faults = [fault for kind in KINDS for fault in faults_of(config, kind)]
    if faults := faults or list(_faults_of_agents(config)):
        raise ConfigError("\n".join(faults))


def _faults_of_agents(config: Config) -> Iterator[str]:
    """Yields what agents ask beyond the abilities of the engines that all calls share."""
    engines = {kind: _shared_engine(config, kind) for kind in KINDS}
    for where, agent in config.named_agents().items():
        code = agent.language.partition("-")[0].lower()
        voice = agent.voice if agent.kind != "realtime" else ""
        asr = {"language": agent.language or config.asr.language}
        tts = {"language": code or config.tts.language, "voice": voice or config.tts.voice}
        own = config.model_copy(
            update={
                "asr": config.asr.model_copy(update=asr),
                "tts": config.tts.model_copy(update=tts),
            }
        )
        for kind, engine in engines.items():
            if engine and (code or (voice and kind == "tts")):
                model = config.asr.model if kind == "asr" else config.tts.model
                for fault in faults_of(own, kind, engine, model if engine in MODELS else ""):
                    yield f"{where}.{fault.partition('.')[2]}"


def _shared_engine(config: Config, kind: Kind) -> AsrEngine | TtsEngine | None:
    """Returns the engine of all calls; None if it is not known, or may be any."""
    section = config.asr if kind == "asr" else config.tts
    if section.url or section.engine == AUTO:
        return None
    if section.engine == SMALL:
        return EMBEDDED_OF[kind]
    try:
        return at_hand(section.engine, section.language) if kind == "tts" else section.engine  # type: ignore[arg-type]
    except EngineError:
        return None


def faults_of(
    config: Config, kind: Kind, engine: AsrEngine | TtsEngine | None = None, model: str = ""
) -> list[str]:
    """Returns what [asr] or [tts] asks beyond the abilities of its engine, or of another one with
    a model, a line for each key. Workers elsewhere are not known, and `auto` is several engines."""
    section = config.asr if kind == "asr" else config.tts
    if engine is None:
        engine, model = section.engine, section.model
        if section.url or engine == AUTO:
            return []
        if engine == SMALL:
            code = section.language.partition("-")[0].lower()
            if any(row.model_for(code) for row in rows_of(kind, engine)):
                return []
            engine = EMBEDDED_OF[kind]
    if isinstance(section, Tts):
        try:
            engine = at_hand(engine, section.language)  # type: ignore[arg-type]
        except EngineError:
            return []  # no voice is here: who opens one says so, and programs may only want to hear
    try:
        return list(_unsupported(section, kind, engine, model))
    except EngineError as error:
        return [f"{kind}.{'model' if model else 'engine'}: {error}"]


def fault_on_phones(config: Config, engine: str) -> str:
    """Returns what is wrong with hearing callers on phones by an engine; "" if nothing is known."""
    takes_phones = config.sip is not None or bool(config.carriers)
    return WEAK_ON_PHONES if takes_phones and engine == EMBEDDED_OF["asr"] else ""


def meanwhile(config: Config, kind: Kind) -> str:
    """Returns what callers have to put up with until a chosen engine is ready; "" if nothing is
    known."""
    if kind == "tts":
        return ""
    code = config.asr.language.partition("-")[0].lower()
    languages = PocketSphinxRecognizer.languages
    if code not in ("", *languages):
        spoken = f"{listed(languages)}, not {config.asr.language!r}"
        return f"Until then {EMBEDDED_OF[kind]} hears {spoken}"
    return fault_on_phones(config, EMBEDDED_OF[kind])


def _unsupported(
    section: Asr | Tts, kind: Kind, engine: AsrEngine | TtsEngine, model: str
) -> Iterator[str]:
    """Raises EngineError for a model that the engine does not have."""
    can = abilities(engine, model)
    code = section.language.partition("-")[0].lower()
    voice = section.voice if isinstance(section, Tts) else ""
    name = f"{engine} ({model})" if model else engine
    if can.voices and voice and voice not in can.voices:
        having = [other for other in WITH_VOICES if voice in abilities(other, "").voices]
        hint = f': set [tts] engine = "{having[0]}"' if having else ""
        yield f"tts.voice: {name} has no voice {voice!r}, only {listed(can.voices)}{hint}"
    elif voice in can.voices and code not in ("", *can.voices[voice]):
        only = listed(can.voices[voice])
        yield f"tts.language: the voice {voice} of {name} speaks {only}, not {section.language!r}"
    if can.languages and code not in ("", *can.languages):
        only = f"{VERB[kind]} {listed(can.languages)}"
        others = advice(kind, code)
        yield f"{kind}.language: {name} {only}, not {section.language!r}: {others}"


def advice(kind: Kind, language: str) -> str:
    """Returns which engines a language needs, in words."""
    found = [name for row in ROWS[kind] if (name := _with_language(row, language))]
    if kind == "tts" and language in abilities("espeak", "").languages:
        found.append('engine = "espeak"' + ("" if is_installed() else " (its extra: espeak)"))
    if not found:
        return f"no engine here is known to {VERBS[kind]} it; a server elsewhere may ([{kind}] url)"
    auto = '; engine = "auto" takes the best that this machine can run' if len(found) > 1 else ""
    return f"set [{kind}] {', or '.join(dict.fromkeys(found))}{auto}"


def _with_language(row: Row, language: str) -> str:
    """Returns the settings with which an engine of `auto` has a language; "" if it has not."""
    model, engine = row.model_for(language), row.engine
    if not model:
        return ""
    can = abilities(engine, model)  # type: ignore[arg-type]
    if can.languages and language not in can.languages:
        return ""
    setting = f'engine = "{engine}"'
    if model != MODELS.get(engine):  # type: ignore[call-overload]
        setting += f' with model = "{model}"'
    published = of_name(model)
    if can.languages or published is None:
        return setting
    return f"{setting} ({published.languages_in_words})"
