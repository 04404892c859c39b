"""What each engine can do, as far as that is known before it loads, and what a configuration asks
of an engine beyond it."""

from collections.abc import Iterator, Mapping

from offhook.pipeline.engines.embedded.embedded_speech_io import listed
from offhook.pipeline.speech.engine_spec import KINDS, EngineSpec, Kind, Need
from offhook.pipeline.speech.engines import of_name, spec_of, specs, stand_in
from offhook.pipeline.speech.errors import EngineError
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.engines import AUTO, SMALL, Asr, Tts
from offhook.web.config.plugins import key_path
from offhook.web.config.reading.faults import placed
from offhook.web.workers.engines.choice import model_for, rows_of
from offhook.web.workers.engines.engines_io import at_hand

VERB: Mapping[Kind, str] = {"asr": "hears", "tts": "speaks"}
VERBS: Mapping[Kind, str] = {"asr": "hear", "tts": "speak"}


def check_engines(config: Config) -> None:
    """Raises ConfigError if an engine is asked for what it cannot do, with a line for each key;
    what only a loaded engine knows is left to its first stream."""
    faults = [
        placed((), fault, config.places) for kind in KINDS for fault in faults_of(config, kind)
    ]
    if faults := faults or list(faults_of_agents(config)):
        raise ConfigError("\n".join(faults))


def faults_of_agents(config: Config) -> Iterator[str]:
    """Yields what agents ask beyond the abilities of the engines that all calls share."""
    engines = {kind: _shared_engine(config, kind) for kind in KINDS}
    for where, agent in config.named_agents().items():
        for tag in agent.languages or [agent.language]:
            code = tag.partition("-")[0].lower()
            voice = agent.voices.get(tag, agent.voice)
            if voice and agent.of_kind.own_voice:
                voice = ""
            asr = {"language": tag or config.asr.language}
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
                    named = model if spec_of(kind, engine).model else ""
                    for fault in faults_of(own, kind, engine, named):
                        key, _, words = fault.partition(".")[2].partition(": ")
                        key = "languages" if agent.languages else key
                        yield placed(key_path(where), f"{where}.{key}: {words}", config.places)


def _shared_engine(config: Config, kind: Kind) -> str | None:
    """Returns the engine of all calls; None if it is not known, or may be any."""
    section = config.asr if kind == "asr" else config.tts
    if section.url or section.engine == AUTO:
        return None
    if section.engine == SMALL:
        return stand_in(kind).name
    try:
        return at_hand(section.engine, section.language) if kind == "tts" else section.engine
    except EngineError:
        return None


def faults_of(config: Config, kind: Kind, engine: str | None = None, model: str = "") -> list[str]:
    """Returns what [asr] or [tts] asks beyond the abilities of its engine, or of another one with
    a model, a line for each key. Workers elsewhere are not known, and `auto` is several engines."""
    section = config.asr if kind == "asr" else config.tts
    if engine is None:
        engine, model = section.engine, section.model
        if section.url or engine == AUTO:
            return []
        if engine == SMALL:
            code = section.language.partition("-")[0].lower()
            if any(model_for(*row, code) for row in rows_of(kind, engine)):
                return []
            engine = stand_in(kind).name
    if isinstance(section, Tts):
        try:
            engine = at_hand(engine, section.language)
        except EngineError:
            return []  # no voice is here: who opens one says so, and programs may only want to hear
    try:
        return list(_unsupported(section, kind, engine, model))
    except EngineError as error:
        return [f"{kind}.{'model' if model else 'engine'}: {error}"]


def fault_on_phones(config: Config, engine: str) -> str:
    """Returns what is wrong with hearing callers on phones by an engine, which may be a name with
    the address of a worker; "" if nothing is known."""
    takes_phones = config.sip is not None or bool(config.carriers)
    known = next((spec for spec in specs("asr") if spec.name == engine), None)
    return known.weak_on_phones if takes_phones and known is not None else ""


def fault_of_lexicon(config: Config) -> str:
    """Returns what the engine of all calls cannot say of a lexicon; "" if nothing is known."""
    engine = config.tts.engine if config.tts.url else _shared_engine(config, "tts")
    spec = next((spec for spec in specs("tts") if spec.name == engine), None)
    if spec is None or "takes IPA" in spec.traits:
        return ""
    sections = config.tts, *config.named_agents().values()
    entries = (entry for section in sections for entry in section.pronunciations.entries)
    words = dict.fromkeys(entry.written for entry in entries if not entry.say)
    if not words:
        return ""
    return f"the lexicon has {listed(words)} in IPA only, which {spec.name} does not take: add say"


def meanwhile(config: Config, kind: Kind) -> str:
    """Returns what callers have to put up with until a chosen engine is ready; "" if nothing is
    known."""
    if kind == "tts":
        return ""
    hears = stand_in(kind)
    code = config.asr.language.partition("-")[0].lower()
    languages = hears.abilities().languages
    if code not in ("", *languages):
        spoken = f"{listed(languages)}, not {config.asr.language!r}"
        return f"Until then {hears.name} hears {spoken}"
    return fault_on_phones(config, hears.name)


def _unsupported(section: Asr | Tts, kind: Kind, engine: str, model: str) -> Iterator[str]:
    """Raises EngineError for a model that the engine does not have."""
    can = spec_of(kind, engine).abilities(model)
    code = section.language.partition("-")[0].lower()
    voice = section.voice if isinstance(section, Tts) else ""
    name = f"{engine} ({model})" if model else engine
    if can.voices and voice and voice not in can.voices:
        having = [other.name for other in specs("tts") if voice in other.abilities().voices]
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
    found = [name for row in rows_of(kind) if (name := _with_language(*row, language))]
    for spec in specs(kind):
        if spec.embedded and spec != stand_in(kind) and language in spec.abilities().languages:
            found.append(f'engine = "{spec.name}"')
    if not found:
        return f"no engine here is known to {VERBS[kind]} it; a server elsewhere may ([{kind}] url)"
    auto = '; engine = "auto" takes the best that this machine can run' if len(found) > 1 else ""
    return f"set [{kind}] {', or '.join(dict.fromkeys(found))}{auto}"


def _with_language(spec: EngineSpec, need: Need, language: str) -> str:
    """Returns the settings with which an engine of `auto` has a language; "" if it has not."""
    model = model_for(spec, need, language)
    if not model:
        return ""
    can = spec.abilities(model)
    if can.languages and language not in can.languages:
        return ""
    setting = f'engine = "{spec.name}"'
    if model != spec.model:
        setting += f' with model = "{model}"'
    published = of_name(model)
    if can.languages or published is None:
        return setting
    return f"{setting} ({published.languages_in_words})"
