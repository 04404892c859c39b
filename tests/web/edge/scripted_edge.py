"""An edge that is real but for its ears and its voice, which hear nothing and speak at once."""

from benchmarks.servers.scripted import ScriptedRecognizer, ScriptedSynthesizer
from offhook.pipeline.conversation.call_io import Call, Engines
from offhook.pipeline.conversation.events import AgentTurn, CallEnded, Event
from offhook.pipeline.conversation.turns.user_turn_io import TurnDetection
from offhook.pipeline.speech.vad.smart_turn_io import SmartTurn
from offhook.pipeline.speech.vad.vad_io import VadBatch
from offhook.web.config.config import Config
from offhook.web.edge.calls.live_call_io import LiveCall
from offhook.web.edge.edge_io import Edge
from offhook.web.workers.engines.call_engines_io import CallEngines


class ScriptedEngines(CallEngines):
    async def open(self) -> str:
        detection = TurnDetection(VadBatch(), SmartTurn())
        self.configured = Engines(detection, ScriptedRecognizer(), ScriptedSynthesizer())
        return "scripted"


class WatchedCall(LiveCall):
    """A call whose edge remembers its events."""

    _host: "ScriptedEdge"

    def report(self, event: Event) -> None:
        super().report(event)
        self._host.events.append(event)


class ScriptedEdge(Edge):
    call_class = WatchedCall

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.engines = ScriptedEngines(config, self.metrics)
        self.events: list[Event] = []

    @property
    def call(self) -> Call:
        (call,) = self.conversations.values()
        assert isinstance(call, Call)
        return call

    def ends(self) -> list[str]:
        return [str(e.reason) for e in self.events if isinstance(e, CallEnded)]

    def turns(self) -> list[str]:
        return [e.text for e in self.events if isinstance(e, AgentTurn)]
