"""Our server as a child of a benchmark: a real edge behind its real routes, with other engines.

scripted   engines and agent of `scripted`; hearing, turns, media and transport are real
embedded   nothing replaced: PocketSphinx, Flite or eSpeak NG, the front desk
echo       no conversation: what a caller says comes back, through jitter buffer, decoder,
           resampler, playout and encoder
vad        the same, and the voice detector hears every call

Browsers call it, with `--sip` phones too, and with `--twilio` that carrier, signatures included. It
may be one of several processes that share a port, as those of `offhook serve` do.
"""

import argparse
import asyncio
import atexit
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from benchmarks.processes.memory import memory_route
from benchmarks.processes.own_server import free_port
from benchmarks.processes.process import LoopLag, core_argument, keep_to, stats_route, stay
from benchmarks.servers.line_stats import lines_route
from benchmarks.servers.scripted import ScriptedAgent, ScriptedRecognizer, ScriptedSynthesizer
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.conversation.agents.kinds.guide import NO_GUIDE, Guide
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.speech.vad.vad import SpeechDetector
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.web.config.config import Agent as AgentSettings
from offhook.web.config.config import Config, Log
from offhook.web.config.records import Records
from offhook.web.config.server import MAX_CALLS, Server, WebRtc
from offhook.web.edge import processes_io
from offhook.web.edge.agents_io import CallAgents
from offhook.web.edge.calls.live_call_io import LiveCall
from offhook.web.edge.calls.records_io import CallRecords
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.edge.siblings_io import NumberedEdge
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run

RTP_PORTS = (16_384, 32_767)
SECRET = "0123456789abcdef0123456789abcdef"
TWILIO = CarrierSettings("twilio", account="AC0123456789abcdef0123456789abcdef", secret=SECRET)


class ScriptedAgents(CallAgents):
    """Scripted agents; `words` is the length of their replies."""

    def __init__(self, config: Callable[[], Config], records: CallRecords, words: int) -> None:
        super().__init__(config, records)
        self._words = words

    def make(
        self, a: AgentSettings, call: Call, briefing: str = "", guide: Guide = NO_GUIDE
    ) -> Agent:
        return Agent("scripted", ScriptedAgent(self._words))


class AnsweringEdge(Edge):
    """An edge with scripted agents."""

    def __init__(self, config: Config, words: int) -> None:
        super().__init__(config)
        self.agents = ScriptedAgents(lambda: config, self.records, words)


class ScriptedEdge(AnsweringEdge):
    """An edge with scripted engines too."""

    async def start(self) -> None:
        await super().start()
        await self.engines.configured.recognizer.close()
        await self.engines.configured.synthesizer.close()
        self.engines.configured.recognizer = ScriptedRecognizer()
        self.engines.configured.synthesizer = ScriptedSynthesizer()


class EchoCall(LiveCall):
    """A call that returns the caller's audio."""

    async def converse(self, agent: AgentSettings) -> None:
        leg, resampler = self.leg, Resampler(RATE_IN, RATE_OUT)

        def back(heard: Pcm, said: Pcm | None, now: float) -> None:
            leg.playout.write(resampler.process(heard))

        stop = leg.listen(back)
        try:
            await leg.until_closed()
        finally:
            stop()


class EchoEdge(Edge):
    """An edge that returns each caller's audio."""

    call_class = EchoCall


class VadCall(EchoCall):
    """An echoed call that the voice detector hears."""

    async def converse(self, agent: AgentSettings) -> None:
        detector = SpeechDetector()

        def window(probability: float, level: float, end_sample: int) -> None:
            for _ in detector.window(probability, level, end_sample):
                pass

        stream = self._host.engines.configured.turn_detection.vad.open(window)
        stop = self.leg.listen(lambda heard, said, now: stream.feed(heard))
        try:
            await super().converse(agent)
        finally:
            stop()
            stream.close()


class VadEdge(EchoEdge):
    call_class = VadCall


class NumberedEcho(NumberedEdge, EchoEdge):
    """One of several."""


class NumberedVad(NumberedEdge, VadEdge):
    """One of several."""


def phones(max_calls: int) -> SipSettings:
    """SIP by UDP, from this machine."""
    loopback = Trunk("loopback", addresses=("127.0.0.0/8",))
    return SipSettings(
        udp=0, tcp=None, trunks=(loopback,), rtp_ports=RTP_PORTS, max_calls=2 * max_calls
    )


def configuration(a: argparse.Namespace) -> Config:
    place = {"port": a.port, "processes": a.processes} if a.processes > 1 else {}
    return Config(
        server=Server.model_validate({"max_calls": a.max_calls, "drain_seconds": 0, **place}),
        webrtc=WebRtc(addresses=["127.0.0.1"], port=free_port() if a.one_port else 0),
        sip=phones(a.max_calls) if a.sip else SipSettings(),
        carriers=(TWILIO,) if a.twilio else (),
        records=records(a),
    )


def records(a: argparse.Namespace) -> Records:
    """Keeps calls, if that is asked for: at a URL, or in a folder that is deleted at the end."""
    if a.kept is None:
        return Records(url="")
    folder = Path(tempfile.mkdtemp(prefix="offhook-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Records(url=a.kept or f"sqlite:///{folder}/calls.db", spool=folder / "spool")


def edge_of(kind: str, config: Config, words: int) -> Edge:
    match kind:
        case "scripted":
            return ScriptedEdge(config, words)
        case "echo":
            return EchoEdge(config)
        case "vad":
            return VadEdge(config)
    return Edge(config)


async def serve(edge: Edge) -> None:
    await edge.start()
    try:
        await _stay(application(edge), edge)
    finally:
        await edge.close()


async def serve_shared(kind: str, config: Config, number: int, directory: Path) -> None:
    """Says on a port of its own how it is doing."""
    edge = (NumberedEcho if kind == "echo" else NumberedVad)(config, None, number)
    await edge.start()
    async with processes_io.shared(edge, directory):
        await _stay(web.Application(), edge)


async def _stay(app: web.Application, edge: Edge) -> None:
    lag = LoopLag()
    stats_route(app, lag)
    memory_route(app)
    lines_route(app, edge)
    watching = asyncio.create_task(lag.watch())
    try:
        await stay(app)
    finally:
        watching.cancel()


async def work(a: argparse.Namespace) -> None:
    config = configuration(a)
    if a.processes > 1:
        await serve_shared(a.kind, config, a.number, a.directory)
    else:
        edge = edge_of(a.kind, config, a.words)
        edge.records.open_store(config)
        await serve(edge)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("scripted", "embedded", "echo", "vad"))
    parser.add_argument("--words", type=int, default=0, help="of a scripted reply")
    parser.add_argument("--one-port", action="store_true", help="browsers share a UDP port")
    kept = "calls are kept, at URL or in SQLite"
    parser.add_argument("--kept", nargs="?", const="", metavar="URL", help=kept)
    parser.add_argument("--sip", action="store_true")
    parser.add_argument("--twilio", action="store_true")
    parser.add_argument("--max-calls", type=int, default=MAX_CALLS)
    core_argument(parser)
    parser.add_argument("--number", type=int, default=1, help="of several processes")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="where the processes find each other")
    parser.add_argument("--port", type=int, default=0, help="that they share")
    arguments = parser.parse_args()
    keep_to(arguments.cpu)
    set_up(Log(level="WARNING" if arguments.sip or arguments.twilio else "INFO"))
    run(work(arguments))


if __name__ == "__main__":
    main()
