"""A call that another system has us record (SIPREC): no agent answers, nothing is said.

what fails                          what happens
a stream's codec, or no port        that stream is refused; if all are, the call (488, 503)
the recognizer of a side            its sound is recorded, `words_missing` says why
the disk                            the words are kept, as of any call
all streams are silent              the call ends, as the settings of its trunk say
the metadata cannot be read         the request is refused with 400; what was known stays
"""

from collections.abc import Callable
from contextlib import AsyncExitStack

from offhook.media.end_reason import End, EndReason
from offhook.media.leg import LegListener
from offhook.pipeline.conversation.bot_io import Bot
from offhook.pipeline.conversation.call.time_limit_io import TimeLimit
from offhook.pipeline.conversation.call_info import as_dict
from offhook.pipeline.conversation.call_io import Engines
from offhook.pipeline.conversation.events import (
    AgentTurn,
    CallEnded,
    CallerTurn,
    CallHeld,
    CallResumed,
    CallStarted,
    Dtmf,
    Event,
    ParticipantsKnown,
    WordsMissing,
)
from offhook.pipeline.conversation.overheard_io import OverheardSides
from offhook.telephony.sip.siprec.recorded_leg_io import RecordedLeg
from offhook.telephony.sip.siprec.recording_session import listed
from offhook.web.config.config import Agent as AgentSettings
from offhook.web.edge.calls.call_recording_io import CallRecording
from offhook.web.edge.calls.live_call_io import LiveCall

RECORDER = "recorder"
"""What answers, in the events of a call that only is recorded."""


class RecordedCall(LiveCall):
    """A call between others, from its first packet to its end. The named agent does not answer: its
    settings say in which language it is, and how it is analysed."""

    async def _answering(self) -> AgentSettings | None:
        self.leg.answered_by = self._agent
        return self._host.agents.called(self._agent)

    async def _run_bot(self, bot: Bot) -> None:
        """Records the call: a bot takes no part, and has no recognizer for it."""
        await self.converse(self._host.agents.called(self._agent))

    async def converse(self, agent: AgentSettings) -> None:
        """Records the call, and recognizes its words, to its end."""
        host, leg = self._host, self.leg
        assert isinstance(leg, RecordedLeg)
        await host.admission.until_may_begin()
        engines = None
        if host.bot is None:
            engines = host.agents.engines(agent, host.engines.of_new_calls())
        always = agent.model_copy(update={"record": "always"})
        # Nobody would hear a notice.
        recording = self._recording = CallRecording(
            leg, host.records, host.config.recording, always, {}, goes_on=True
        )
        recording.follow(self.report)
        minutes = host.config.server.max_call_minutes
        limit = TimeLimit(60 * min(minutes, agent.max_minutes or minutes), 0)
        reason: EndReason = End.SERVER_FAILED
        try:
            recording.begin()
            name = "" if engines is None else engines.recognizer.name
            self.report(CallStarted(leg.heard_ms, RECORDER, name, "", **as_dict(leg.info)))
            limit.start()
            async with AsyncExitStack() as ends:
                sides = RecordedSides(leg, engines, self.report)
                ends.push_async_callback(sides.close)
                leg.attach(sides)
                leg.on_change = sides.follow
                sides.follow()
                too_long = await limit.wait_for(leg.until_closed())
                reason = End.TOO_LONG if too_long else leg.closed or reason
        finally:
            self.report(CallEnded(leg.heard_ms, reason, leg.statistics().as_dict()))
            recording.close()
            await leg.hang_up(reason)


class RecordedSides(LegListener):
    """The words of each stream of a call while it lasts, and what is told of the call."""

    def __init__(
        self, leg: RecordedLeg, engines: Engines | None, report: Callable[[Event], None]
    ) -> None:
        """Without `engines` no words are recognized."""
        self._leg, self._report = leg, report
        self._words: OverheardSides | None = None
        if engines is not None:
            self._words = OverheardSides(leg.call_id, engines, self._say, self._miss)
        self._turns = 0
        self._participants: tuple[dict[str, str], ...] = ()

    def follow(self) -> None:
        """Listens to the streams that have come, not to those that are gone, and tells who takes
        part if that has changed."""
        leg = self._leg
        if self._words is not None:
            live = {s.leg: s is leg.first for s in leg.streams if s.leg is not None}
            self._words.follow({one: "caller" if live[one] else "called" for one in live})
        if leg.metadata is not None:
            participants = tuple(listed(leg.metadata, leg.labels))
            if participants != self._participants:
                self._participants = participants
                self._report(ParticipantsKnown(leg.heard_ms, participants))

    def _miss(self, side: str, cause: str) -> None:
        self._report(WordsMissing(self._leg.heard_ms, side, cause))

    def _say(self, side: str, text: str, ago_ms: int) -> None:
        at_ms = self._leg.heard_ms
        if side == "caller":
            self._turns += 1
            self._report(CallerTurn(at_ms, self._turns, text))
        else:
            self._report(AgentTurn(at_ms, self._turns, text, False))

    def on_held(self, held: bool) -> None:
        at_ms = self._leg.heard_ms
        self._report(CallHeld(at_ms, "caller") if held else CallResumed(at_ms, "caller"))

    def on_dtmf(self, digit: str) -> None:
        self._report(Dtmf(self._leg.heard_ms, digit))

    async def close(self) -> None:
        """Waits for the last words."""
        if self._words is not None:
            await self._words.close()
