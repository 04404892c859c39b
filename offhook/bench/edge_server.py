"""Our server as a child of a benchmark: a real edge behind its real routes, with other engines.

scripted   engines and agent of `scripted`; hearing, turns, media and transport are real
embedded   nothing replaced: PocketSphinx, Flite or eSpeak NG, the front desk
echo       no conversation: what a caller says comes back
"""

import argparse
import asyncio
from collections.abc import Callable

from offhook.bench.memory import memory_route
from offhook.bench.own_server import free_port
from offhook.bench.process import LoopLag, stats_route, stay
from offhook.bench.scripted import ScriptedAgent, ScriptedRecognizer, ScriptedSynthesizer
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.web.config.config import MAX_CALLS, Config, Log, Server, WebRtc
from offhook.web.config.config import Agent as AgentSettings
from offhook.web.edge.agents_io import CallAgents
from offhook.web.edge.calls.live_call_io import LiveCall
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run


class ScriptedAgents(CallAgents):
    """Scripted agents; `words` is the length of their replies."""

    def __init__(self, config: Callable[[], Config], words: int) -> None:
        super().__init__(config)
        self._words = words

    def make(self, a: AgentSettings, call: Call, briefing: str = "") -> Agent:
        return Agent("scripted", ScriptedAgent(self._words))


class AnsweringEdge(Edge):
    """An edge with scripted agents."""

    def __init__(self, config: Config, words: int) -> None:
        super().__init__(config)
        self.agents = ScriptedAgents(lambda: config, words)


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


def edge_of(engines: str, words: int, port: int = 0) -> Edge:
    config = Config(
        server=Server(max_calls=MAX_CALLS, drain_seconds=0),
        webrtc=WebRtc(addresses=["127.0.0.1"], port=port),
    )
    match engines:
        case "scripted":
            return ScriptedEdge(config, words)
        case "echo":
            return EchoEdge(config)
    return Edge(config)


async def serve(make: Callable[[], Edge]) -> None:
    edge = make()
    await edge.start()
    app, lag = application(edge), LoopLag()
    stats_route(app, lag)
    memory_route(app)
    watching = asyncio.create_task(lag.watch())
    try:
        await stay(app)
    finally:
        watching.cancel()
        await edge.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", choices=("scripted", "embedded", "echo"))
    parser.add_argument("--words", type=int, default=0)
    parser.add_argument("--one-port", action="store_true")
    arguments = parser.parse_args()
    set_up(Log(level="INFO"))
    port = free_port() if arguments.one_port else 0
    run(serve(lambda: edge_of(arguments.engines, arguments.words, port)))


if __name__ == "__main__":
    main()
