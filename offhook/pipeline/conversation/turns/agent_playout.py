"""The agent's voice on one caller's line: what of it plays, when an answer may be heard, and what
comes back as echo. Sans-io; positions are samples of what was received."""

from collections.abc import Callable

from offhook.media.leg import Leg
from offhook.media.pcm import Pcm
from offhook.pipeline.conversation.events import Event, Interrupted, PlayoutPaused, PlayoutResumed
from offhook.pipeline.conversation.reply import Reply
from offhook.pipeline.conversation.turns.caller_audio import MS, CallerAudio
from offhook.pipeline.conversation.turns.echo_gate import NEVER, EchoGate
from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.conversation.turns.last_turn import LastTurn
from offhook.pipeline.conversation.turns.turn import TurnState

OVER_THE_AGENT = (TurnState.SUSPECTED, TurnState.JUDGING)
"""States in which the caller may be speaking over the agent."""
_LISTENING, _REPLYING, _SUSPECTED = TurnState.LISTENING, TurnState.REPLYING, TurnState.SUSPECTED


class AgentPlayout:
    """The playout of one leg, as turn-taking uses it: directly, not by queued frames."""

    def __init__(
        self,
        leg: Leg,
        audio: CallerAudio,
        reply: Reply,
        facts: Facts,
        emit: Callable[[Event], None],
    ) -> None:
        """Answers what `facts` ask about the agent. `emit` receives the call's events."""
        self.interruptible = True
        """Whether the caller can interrupt the agent."""
        self.away = False
        """Whether the line is on hold or being transferred, and playout paused."""
        self.held_until: int | None = None
        """Position before which the answer is not heard; None if it may be."""
        self.echo = EchoGate()
        self._leg, self._playout = leg, leg.playout
        self._audio, self._reply, self._facts, self._emit = audio, reply, facts, emit
        facts.echo, facts.agent_left_ms = self._is_echo, lambda: self._playout.audible_left_ms
        self._state = TurnState.LISTENING
        self._began = NEVER
        """Position at which the agent last began to speak while nobody did."""

    @property
    def speaking(self) -> bool:
        return self._playout.speaking

    def set_away(self, away: bool) -> None:
        self.away = away
        if away:
            self._playout.pause()
        else:
            self._playout.resume()

    def add(self, heard: Pcm, said: Pcm | None, state: TurnState) -> None:
        """Add a packet's audio each way, in this state of the turn."""
        self._state = state
        audio = self._audio
        if self._leg.fills:
            said = None  # music in the agent's pauses is no voice
        quiet = not (audio.detector.speaking or audio.suspected)
        self.echo.add(heard, said, audio.end, quiet=quiet)
        if said is not None and state is _LISTENING:
            self._began = audio.end

    def _is_echo(self) -> bool:
        # Only audio that the VAD has processed, which may lag on a busy machine.
        until, suspected = self._audio.detector.now, self._state in OVER_THE_AGENT
        found = self.echo.is_echo(until, speaking=self._playout.speaking, suspected=suspected)
        self._facts.no_echo_ms = self.echo.no_echo_ms
        return found

    def lower(self) -> None:
        self._playout.lower()

    def pause(self) -> None:
        """Silence the agent until the caller's sound is classified."""
        self._playout.pause()
        if not self._facts.echo_free:
            self.echo.pause()
        self._emit(PlayoutPaused(self._audio.end_ms, self._audio.onset // MS))

    def resume(self) -> None:
        """Let the agent go on: the sound was no interruption."""
        self._forget_no_echo()
        if not self.away:
            self._playout.resume()
        self._emit(PlayoutResumed(self._audio.end_ms, self._facts.text))

    def interrupt(self, last: LastTurn) -> None:
        """Drop the reply to the caller, who may be going on with the last turn."""
        self._forget_no_echo()
        said = self.cut()
        if last.goes_on(self._audio.end, self._audio.onset, bool(said)):
            self._facts.before = last.text

    def cut(self) -> str:
        """Silence the agent, whose reply somebody else cancels; return what was said of it."""
        self._playout.flush()
        if self.away:
            self._playout.pause()
        said, unsaid = self._reply.end()
        self._reply.cut = True
        if said or unsaid:
            self._emit(Interrupted(self._audio.end_ms, said, unsaid))
        return said

    def cut_by_typing(self) -> bool:
        """Silence the agent, over which the caller types; return False if it may not be
        interrupted."""
        if self.interruptible:
            self.cut()
        return self.interruptible

    def _forget_no_echo(self) -> None:
        self._facts.no_echo_ms = self.echo.no_echo_ms = 0

    def hold_for(self, wait_ms: int) -> None:
        """Keep the next answer from being heard for so long; 0 or less: it may be heard at once."""
        self.held_until = self._audio.end + wait_ms * MS if wait_ms > 0 else None

    def hold(self, until: int, state: TurnState) -> None:
        """Hold the answer back until then, as long as the caller is silent."""
        if state is _REPLYING and self._audio.end < until:
            self._playout.pause()
            return
        self.held_until = None
        if not (state in OVER_THE_AGENT or self.away or self._leg.held):
            self._playout.resume()

    def update_facts(self, last: LastTurn) -> None:
        """State what is known of the agent."""
        facts, echo, reply, now = self._facts, self.echo, self._reply, self._audio.end
        facts.echo_free = echo.is_free
        facts.first = self._audio.onset < self._began
        facts.unheard = echo.sent_at < last.committed_at and last.is_fresh(now)
        facts.asked = reply.last
        facts.agent_speaking = self.interruptible and self._playout.speaking
        facts.agent_busy = self.interruptible and reply.busy
        facts.agent_silent_ms = (now - max(echo.sent_at, last.committed_at)) // MS
        if facts.words_due or self._state is _SUSPECTED:
            facts.agent_said, facts.agent_asks = reply.recent(), reply.asks

    def close(self) -> None:
        """Free the audio."""
        self.echo.close()
