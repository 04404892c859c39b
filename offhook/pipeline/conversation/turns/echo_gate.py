"""What of a call's received audio is the agent's voice coming back: the echo detector's answers,
which cost milliseconds and are wrong at times, as something to rely on.

Positions are samples of what was received.
"""

from offhook.media.pcm import PACKET_MS, RATE_IN, SAMPLES_IN, Pcm
from offhook.pipeline.conversation.turns.echo import MAX_DELAY_MS, EchoDetector

MS = RATE_IN // 1000
NEVER = -(10**9)
CHECK_MS = 100
"""ms for which an echo check stays valid: a check takes milliseconds of CPU time."""
CHECK_MOST_MS = 150
"""Maximum ms of audio that a check without echo clears, since a stall before it affects it, too; a
longer interval counts as this much."""
TAIL_MS = MAX_DELAY_MS
"""How late in ms the agent's last words can return as echo after they were sent."""
KNOWN_MS = 10_000
"""A line with echo in the last so many ms is assumed to have more: a number of checks in a row must
then find none..."""
MISSES_SPEAKING = 2
"""...this many while the agent speaks, when it has to fall silent soon..."""
MISSES_SILENT = 3
"""...and this many after its last word, when waiting loses nothing because the audio is kept."""
DOUBT_MS = 400
"""Age in ms up to which a check confirms another: on a busy machine and between words, checks are
farther apart than usual."""
UNKNOWN_MS = 800
"""Delay in ms assumed for echo while it is unknown whether the line has any..."""
QUIET_PROVES_MS = 1500
"""...until the agent has spoken for this many ms without any echo, which proves that there is
none."""
LINGERS_MS = 160
"""ms for which the VAD still reports voice after echo ends, from room reverberation and its
windows."""


class EchoGate:
    """The echo of one call."""

    def __init__(self) -> None:
        self.sent_at = NEVER
        """When the agent was last heard on the line."""
        self.no_echo_ms = 0
        """ms of audio that checks have found to be no echo since this was set to 0, or since the
        last echo while nobody was suspected to speak over the agent."""
        self.sure_until = NEVER
        """Until when the audio is echo by checks that do not directly follow one without: a caller
        who talks over the agent is sometimes taken for echo."""
        self._detector = EchoDetector()
        self._now = 0
        self._until = NEVER
        """Until when the audio is known to be echo."""
        self._gone = NEVER
        """From when on audio sent before the last pause can no longer return as echo."""
        self._known_at = NEVER
        """When a check last found echo at the delay of another one."""
        self._alone_ms = 0
        """ms for which the agent has spoken in this call while nothing was received."""
        self._verdict = (False, NEVER)
        """The last check's, and when it was."""
        self._misses = 0
        """Consecutive checks that found no echo."""

    def add(self, heard: Pcm, said: Pcm | None, now: int, *, quiet: bool) -> None:
        """Adds a packet's audio each way, which was received until `now`; `quiet`: the caller says
        nothing."""
        self._now = now
        self._detector.sent(said)
        self._detector.add_received(heard)
        if said is not None:
            self.sent_at = now
            if quiet:
                self._alone_ms += PACKET_MS

    def is_echo(self, until: int, *, speaking: bool, suspected: bool) -> bool:
        """Returns whether the audio before `until` is echo. `speaking`: the agent is;
        `suspected`: the caller may be, over it. Costs a correlation every CHECK_MS."""
        if until - self.sent_at > TAIL_MS * MS:
            return False
        verdict, at = self._verdict
        if until - at < CHECK_MS * MS:
            return verdict
        found = self._detector.is_echo((self._now - until) // SAMPLES_IN)
        if found and self._detector.repeats:
            self._known_at = until
        known = until - self._known_at < KNOWN_MS * MS
        # The first sounds of a caller, short as they are, sometimes pass for echo.
        found = found and (self._known_at >= 0 or self._alone_ms < QUIET_PROVES_MS)
        if found:
            self._until = until
            if not self._misses:
                self.sure_until = until
            if not suspected:
                self.no_echo_ms = 0
        else:
            self.no_echo_ms += min((until - at) // MS, CHECK_MOST_MS)
        misses = self._misses if until - at < DOUBT_MS * MS else 0
        self._misses = 0 if found else misses + 1
        enough = MISSES_SPEAKING if speaking else MISSES_SILENT
        verdict = found or (known and self._misses < enough)
        self._verdict = (verdict, until)
        return verdict

    def close(self) -> None:
        """Frees the audio."""
        del self._detector

    def pause(self) -> None:
        """The agent falls silent; what was sent of it may still return."""
        self._gone = self._end()

    @property
    def is_free(self) -> bool:
        """Whether the agent has been heard long enough to know that the line has no echo."""
        return self._alone_ms >= QUIET_PROVES_MS and not self._is_known()

    @property
    def may_return(self) -> bool:
        """Whether received audio may contain the agent's, if only what a canceller left of it."""
        return self._now < self._end()

    @property
    def over_since(self) -> int:
        """From when on audio is the caller's, as far as checks and the last pause say."""
        return max(self._until, self._gone)

    def _is_known(self) -> bool:
        return self._now - self._known_at < KNOWN_MS * MS

    def _end(self) -> int:
        """Returns from when on the agent's last audio can no longer return."""
        delay_ms = self._detector.delay_ms if self._is_known() else UNKNOWN_MS
        return self.sent_at + (delay_ms + LINGERS_MS) * MS
