"""Checks of `auto`: what it would choose here and why, and what a running server is doing."""

import asyncio
from collections.abc import Iterator

from offhook.pipeline.engines.hub.download_io import in_words
from offhook.pipeline.engines.shared.model.instructions import Instructions
from offhook.pipeline.speech.engine_spec import KINDS, Kind
from offhook.pipeline.speech.engines import stand_in
from offhook.web.app.doctor.finding import Finding, Outcome
from offhook.web.app.doctor.server_io import ask_server
from offhook.web.config.config import Config
from offhook.web.workers.engines.abilities_io import fault_on_phones, faults_of, meanwhile
from offhook.web.workers.engines.choice import Choice, Machine, choice_for
from offhook.web.workers.engines.machine_io import free_bytes, is_cached, look

SUBJECTS: dict[Kind, str] = {"asr": "auto, hearing", "tts": "auto, speaking"}
INT8 = {
    Instructions.VNNI: "VNNI",
    Instructions.AVX: "AVX without VNNI, which takes 2 to 3 times as long",
    Instructions.OTHER: "QNNPACK",
}


def examine_choices(config: Config) -> Iterator[Finding]:
    """Yields what `auto` chooses, where it is configured or could be instead of the embedded
    engines, and the states of the engines of a server that runs here."""
    machine = look()
    yield Finding("8-bit products", "ok", f"on this CPU by {INT8[machine.instructions]}")
    running = asyncio.run(_engines_of_server(config))
    for kind in KINDS:
        section = config.asr if kind == "asr" else config.tts
        if not section.url and (section.automatic or section.engine == stand_in(kind).name):
            yield _choice(config, kind, machine, section.automatic)
        if kind in running:
            yield _running(f"{SUBJECTS[kind]}, now", running[kind])


def _choice(config: Config, kind: Kind, machine: Machine, wanted: bool) -> Finding:
    choice = choice_for(config, kind, machine)
    would = "" if wanted else "would choose "
    if wanted and (faults := faults_of(config, kind, choice.engine, choice.model)):
        return Finding(SUBJECTS[kind], "fails", f"{choice.engine}: {'; '.join(faults)}")
    if wanted and (fault := fault_on_phones(config, choice.engine)):
        return Finding(SUBJECTS[kind], "note", f"{choice.engine}: {choice.why}. {fault}")
    if choice.embedded:
        verdict: Outcome = "note" if wanted else "ok"
        return Finding(SUBJECTS[kind], verdict, f"{would}{choice.engine}: {choice.why}")
    worse = meanwhile(config, kind) if wanted else ""
    detail = f"{would}{choice.engine} ({choice.model}): {choice.why}{worse and f'. {worse}'}"
    room, enough = _room(choice)
    return Finding(SUBJECTS[kind], "ok" if enough else "note", f"{detail}; {room}")


def _room(choice: Choice) -> tuple[str, bool]:
    """Describes the download, and returns whether the disk has room for it."""
    published = choice.published
    if published is None:
        return "its size is not known", True
    if is_cached(published):
        return f"on this machine already, {published.licence}", True
    free = free_bytes(published)
    size = in_words(published.bytes) if published.bytes else "a size that only the hub knows"
    detail = f"{size} to download, {in_words(free)} free, {published.licence}"
    return detail, not published.bytes or published.bytes < free


def _running(subject: str, state: dict[str, object]) -> Finding:
    detail = f"{state.get('uses')} in use, {state.get('engine')} is {state.get('state')}"
    if state.get("state") == "failed":
        return Finding(subject, "note", f"{detail}: the log of the server says why")
    return Finding(subject, "ok", detail)


async def _engines_of_server(config: Config) -> dict[str, dict[str, object]]:
    """Returns the states that a server of this configuration tells; empty without one."""
    states = (await ask_server(config, "/healthz")).get("engines", {})
    try:
        return {kind: dict(state) for kind, state in states.items()}
    except (AttributeError, TypeError, ValueError):
        return {}
