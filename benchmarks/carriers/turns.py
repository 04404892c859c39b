"""A spoken conversation over a carrier's stream: see `offhook bench carriers turns --help`.

One real server, and the sentences of `sip_turns` in the same voice. The caller is a far end: what
it hears is what it played, sample by sample, after the way there and its own buffer. The words that
the server keeps of a reply that was cut short are in its log; the words that were heard are found
in what was played, by the sound itself and by a recogniser.
"""

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import numpy as np

from benchmarks.calls.call_turns import ABSENT, ASK, START_S
from benchmarks.carriers.far_ends.far_end import CallFacts
from benchmarks.carriers.far_ends.far_end_io import FAR_ENDS, Refused
from benchmarks.carriers.far_ends.far_end_io import Way as Wire
from benchmarks.carriers.far_ends.webhook import BY_WEBHOOK, Application, find_stream
from benchmarks.carriers.leg_io import FarEndLeg
from benchmarks.carriers.words import Exact, compare, speak
from benchmarks.processes.own_server import free_port, is_ready, started
from benchmarks.sip.turns import BargeIn, BargeIns, Conversation, ServerLog, Way
from benchmarks.speech.lines import CONVERSATION, voiced
from offhook.media.pcm import Pcm
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.signaling.peer_io import use_addresses
from offhook.web.app.cli.caller_io import (
    CallError,
    CallReport,
    ScriptedCall,
    ScriptLine,
)
from offhook.web.workers.engines.engines_io import open_synthesizer

PROVIDERS = tuple(FAR_ENDS)
SECRET = "0123456789abcdef0123456789abcdef"


def configuration(audiosocket_port: int) -> str:
    """Of the server, TOML: Twilio signs, of the others no signature is asked."""
    signed = f"account = '{CallFacts.account}'\nsecret = '{SECRET}'"
    more = {"twilio": signed, "audiosocket": f"port = {audiosocket_port}", "chan_websocket": ""}
    tables = (
        f"[[carriers]]\nprovider = '{name}'\n{more.get(name, 'insecure = true')}\n"
        for name in PROVIDERS
    )
    return "\n".join(("[log]\njson_lines = true\nwords = true\n", *tables))


@asynccontextmanager
async def server(directory: Path, audiosocket_port: int) -> AsyncIterator[str]:
    """A real `offhook serve` with all carriers, its log in the directory; yields its URL."""
    config, log, port = directory / "offhook.toml", directory / "log", free_port()
    config.write_text(configuration(audiosocket_port))
    url = f"http://127.0.0.1:{port}"
    arguments = ("serve", "--port", str(port), "--config", str(config))
    async with started(arguments, partial(is_ready, url), START_S, ABSENT, log=log):
        yield url


def application(provider: str, url: str, audiosocket_port: int) -> Application:
    """`url` is the server's."""
    if provider in BY_WEBHOOK:
        return Application(f"{url}/carriers/{provider}/voice", SECRET, provider=provider)
    if provider == "audiosocket":
        return Application(stream=f"tcp://127.0.0.1:{audiosocket_port}", provider=provider)
    stream = f"{url.replace('http', 'ws', 1)}/carriers/{provider}/stream"
    return Application(stream=stream, provider=provider)


@dataclass
class CarrierWay(Way):
    exact: list[Exact | None] = field(default_factory=list)
    """Of each reply that was cut; None where the sound was not found in it."""

    def of_lines(self) -> str:
        faults = {name: n for line in self.lines for name, n in line["faults"].items()}
        return f"faults {faults or 0}"

    def of_words(self, off: Sequence[int]) -> str:
        found = [exact for exact in self.exact if exact is not None]
        return (
            f"played: by the sound {[e.words_off for e in found]}, off by "
            f"{[e.off_ms for e in found]} ms, not found {len(self.exact) - len(found)}; by a "
            f"recogniser {off}"
        )


class ByCarrier(ScriptedCall):
    """A scripted call whose line is a far end's. What the agent does is told by ear."""

    def _use_far_end(self, target: Application, wire: Wire) -> None:
        self._target = target
        self.far_leg = FarEndLeg(FAR_ENDS[target.provider](), wire)
        self.leg = self.far_leg  # type: ignore[assignment]
        self.leg.listen(self._by_ear.tick)

    async def run(self) -> CallReport:
        """Raises CallError."""
        try:
            await self._dial()
            await self._go_through()
        finally:
            await self.leg.hang_up("goodbye")
            self._clock.remove(self.leg)
            faults = dict(self.far_leg.far_end.faults)
            self.report.statistics |= {**self.leg.statistics().as_dict(), "faults": faults}
        return self.report

    async def _dial(self) -> None:
        far_end = self.far_leg.far_end
        try:
            async with aiohttp.ClientSession() as http:
                url, far_end.facts, headers = await find_stream(http, self._target, far_end.facts)
            await self.far_leg.dial(url, headers)
        except Refused as error:
            raise CallError(str(error)) from error


class CarrierConversation(ByCarrier, Conversation):
    def __init__(
        self, way: Way, lines: list[ScriptLine], log: ServerLog, target: Application, wire: Wire
    ) -> None:
        super().__init__(way, lines, log)
        self._use_far_end(target, wire)

    async def _say(self, line: ScriptLine) -> None:
        await super()._say(line)
        self._by_ear.forget()


class CarrierBargeIns(ByCarrier, BargeIns):
    def __init__(
        self,
        way: CarrierWay,
        question: Pcm,
        times: int,
        log: ServerLog,
        recognizer: PocketSphinxRecognizer,
        synthesizer: Synthesizer,
        target: Application,
        wire: Wire,
    ) -> None:
        """`synthesizer` is the agent's."""
        super().__init__(way, question, times, log, recognizer)
        self._synthesizer, self._exact = synthesizer, way.exact
        self._use_far_end(target, wire)

    async def _compare(self, trial: BargeIn, heard: list[Pcm], unheard: str) -> None:
        await super()._compare(trial, heard, unheard)
        reply = await speak(self._synthesizer, f"{trial.context} {unheard}")
        self._exact.append(compare(reply, np.concatenate(heard), trial.context))


async def measure(
    providers: Sequence[str], wire: Wire, rounds: int, barge_ins: int
) -> list[CarrierWay]:
    """Provider after provider, so many conversations each, then the interruptions."""
    use_addresses(["127.0.0.1"])
    synthesizer, recognizer = open_synthesizer(), PocketSphinxRecognizer(1)
    await synthesizer.start()
    await recognizer.start()
    said = await voiced(ASK, *CONVERSATION, apart=True)
    port = free_port()
    try:
        with tempfile.TemporaryDirectory() as directory:
            async with server(Path(directory), port) as url:
                log = ServerLog(Path(directory) / "log")
                ways: list[CarrierWay] = []
                for provider in providers:
                    target = application(provider, url, port)
                    way = CarrierWay(provider, target.webhook or target.stream)
                    for _ in range(rounds):
                        log.take()
                        script = [ScriptLine(text, said[text]) for text in CONVERSATION]
                        call = CarrierConversation(way, script, log, target, wire)
                        way.lines.append((await call.run()).statistics)
                    again = CarrierBargeIns(
                        way, said[ASK], barge_ins, log, recognizer, synthesizer, target, wire
                    )
                    way.lines.append((await again.run()).statistics)
                    ways.append(way)
    finally:
        await recognizer.close()
        await synthesizer.close()
    return ways
