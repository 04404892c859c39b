"""Who or what has answered a call, by its sound and its words. Sans-io: 20 ms ticks, the voice
detector's windows and the recognizer's words go in, results come out.

A short first utterance and silence is a person, who must not wait: that decides at once, and what
is heard later may show that it was the "Hi" of a machine's greeting. Which result may follow which
is in `FOLLOWS`. A result is certain if no person sounds like that; only on such nobody is lost if
the call is ended.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from offhook.media.answer_status import Result
from offhook.media.pcm import PACKET_MS, Pcm, dbfs
from offhook.media.telephone_tones.steady_tones import SteadyTones
from offhook.pipeline.conversation.answering.phrases import heard_in
from offhook.pipeline.conversation.answering.tones import Sign, ToneSigns

VOICE, STILL_VOICE = 0.5, 0.35
"""Speech probability of a window from which on a voice begins, and goes on."""
CLICK_MS = 90
"""A voice that is shorter is none."""
SHORT_MS = 1400
"""Longest first utterance that is a person's as it stands: "Hello, Anna Miller"."""
AFTER_SHORT_MS = 220
"""Silence after it. The detector of voices notices it some 60 ms late."""
MIDDLE_MS = 2300
"""Longest first utterance of a person who has more to say than a name."""
AFTER_MIDDLE_MS = 480
"""Silence after it: within a machine's greeting there are shorter pauses."""
LONG_MS = 2600
"""What speaks for so long is probably a machine; people name their firm, and wait."""
DOUBTFUL_MS = 1300
"""The same if its words are such as machines have, or if it has seemed to be a person, who would
not have gone on."""
PLAIN_MS = 1000
"""How much longer both are where words are understood and no machine says them."""
PLAIN_WORDS = 3
"""Words from which that is so."""
GOES_ON_MS = 900
"""Silence within which what has seemed to be a person goes on if it is a machine: an agent has
hardly begun by then."""
QUIETER_DB = 24.0
"""How far below the loudest parts of an utterance its end may be."""
WAITS_MS = 1400
"""Silence after which whoever has spoken for longer waits for an answer, if nothing speaks for a
machine."""
WAITS_PLAIN_MS = 640
"""The same where words are understood and no machine says them: sentences of a greeting are closer
to each other."""
NO_PERSON_MS = 6500
"""What speaks for so long does not wait for an answer."""
BREATH_MS = 420
"""Silences that are longer are the end of an utterance."""
SILENT_MS = 3500
"""Time without any voice after which the agent begins, whoever is there."""
RINGS_MS = 5500
"""Silence after a ringing tone after which it has ended (ITU-T E.180 has at most 5 s)."""
UNDECIDED_MS = 20_000
"""Time after which the agent begins, whatever is heard."""
ENDED_MS = 2000
"""Silence after a greeting after which it has ended without a beep."""
TONE_DUE_MS = 5000
"""The same where the greeting has spoken of a tone."""
SPOKEN_MS = 1500
"""Voice before a beep that makes it that of a machine."""
CORRECTED_MS = 15_000
"""Time from the answer within which what seemed to be a person can turn out to be a machine."""

FOLLOWS: Mapping[Result | None, frozenset[Result]] = {
    None: frozenset(
        ("human", "machine", "machine_end", "screening", "menu", "unavailable", "fax", "unknown")
    ),
    # A person comes to the phone, it was a machine that seemed to wait, or a fax machine is slow.
    "unknown": frozenset(
        ("human", "machine", "machine_end", "screening", "menu", "unavailable", "fax")
    ),
    # It was the "Hi" of a greeting.
    "human": frozenset(("machine", "machine_end", "screening", "menu", "unavailable")),
    "machine": frozenset(("human", "machine_end", "screening", "menu", "unavailable")),
    # "… is not available. To leave a message, wait for the tone."
    "unavailable": frozenset(("machine", "machine_end", "menu")),
    "screening": frozenset(("human", "machine", "machine_end", "unavailable")),
    "menu": frozenset(("human", "machine", "machine_end", "screening", "unavailable")),
    "machine_end": frozenset(),
    "fax": frozenset(),
}
"""Which results may follow which."""


@dataclass(frozen=True)
class Verdict:
    """What has answered, as far as is known now."""

    result: Result
    after_ms: int
    """Time in ms from the answer."""
    why: str
    certain: bool
    """Whether it is no person for sure."""
    heard: str = ""
    """The words that say so."""


class AnswerDetector:
    """Of one call, from its answer on. `tick`, `voice`, `words` and `carrier` each return a new
    verdict, or None while the last one stands."""

    def __init__(self) -> None:
        self.verdict: Verdict | None = None
        self.now_ms = 0
        self._invited = False
        """The greeting has spoken of a message, or of a tone."""
        self._tones = SteadyTones()
        self._signs = ToneSigns()
        self._beeped = False
        """Whether a machine has beeped."""
        self._voice = False
        self._candidate_ms: int | None = None
        """When what may be a voice began."""
        self._first_ms: int | None = None
        """When the first voice began."""
        self._began_ms = self._until_ms = 0
        """When the current or last utterance began, and the end of the last voice."""
        self._voiced_ms = 0
        """All voice so far."""
        self._level = self._loudest = -96.0
        """In dBFS: of the last tick, and of the loudest one since the utterance began."""
        self._seemed_ms: int | None = None
        """The end of the voice that has seemed to be a person's."""
        self._resumed_ms: int | None = None
        """When it went on, if it did so at once."""
        self._first_over = False
        """Whether there was a second utterance."""
        self._machine_by_words = False
        self._person_by_words = False
        self._has_plain_words = False
        """What was understood of it last is nothing that machines say."""
        self._rang_until_ms: int | None = None
        self._toned_ms = -WAITS_PLAIN_MS
        """When a tone was heard last."""
        self.conversed = False
        """The agent was heard: whoever speaks now may speak to it."""

    # --- what is heard ---

    def tick(self, pcm: Pcm) -> Verdict | None:
        """Take 20 ms of what was received, int16[320] at 16 kHz."""
        self.now_ms += PACKET_MS
        self._level = dbfs(pcm)
        ended = self._tones.process(pcm)
        sounding = self._tones.sounding
        if sounding is not None:
            self._toned_ms = self.now_ms
        silent = not self._voice and sounding is None
        sign = self._signs.step(ended, sounding, self.now_ms, silent=silent)
        if sign is not None:
            found = self._by_tone(sign)
            if found is not None:
                return found
        return self._by_silence()

    def voice(self, probability: float, end_ms: int) -> Verdict | None:
        """Take the speech probability, 0 to 1, of a window of 32 ms that ends then."""
        sounding = self._tones.sounding
        is_tone = sounding is not None and sounding.lasted_ms >= 80
        before = end_ms - 32
        if is_tone or probability < (STILL_VOICE if self._voice else VOICE):
            self._voice, self._candidate_ms = False, None
            return None
        if not self._voice:
            self._voice, self._candidate_ms = True, before
        if self._first_ms is None or before - self._until_ms > BREATH_MS:
            start = self._candidate_ms if self._candidate_ms is not None else before
            if end_ms - start < CLICK_MS:
                return None
            self._begin_utterance(start)
        elif self._level < self._loudest - QUIETER_DB:
            return None  # the detector notices the end of a voice late
        if self._seemed_ms is not None and self._resumed_ms is None:
            at_once = before - self._seemed_ms <= GOES_ON_MS
            self._resumed_ms = before if at_once else None
        self._loudest = max(self._loudest, self._level)
        self._voiced_ms += end_ms - max(self._until_ms, self._began_ms)
        self._until_ms = end_ms
        return self._goes_on()

    def _begin_utterance(self, start_ms: int) -> None:
        self._first_over = self._first_ms is not None
        if self._first_ms is None:
            self._first_ms = start_ms
        self._resumed_ms = None
        self._began_ms, self._loudest = start_ms, -96.0

    def _goes_on(self) -> Verdict | None:
        """Return whether it speaks for too long to be a person who waits for an answer."""
        if self._person_by_words:
            return None
        if self._is_of("human"):
            resumed, longest = self._resumed_ms, DOUBTFUL_MS
            spoke = 0 if resumed is None else self._until_ms - resumed
        else:
            longest = DOUBTFUL_MS if self._machine_by_words else LONG_MS
            spoke = self._voiced_ms
        if spoke < longest + (PLAIN_MS if self._has_plain_words else 0):
            return None
        return self._find("machine", "it goes on speaking", certain=False)

    def words(self, text: str) -> Verdict | None:
        """Take all words of the utterance so far, or of the one that has ended."""
        heard = heard_in(text)
        self._has_plain_words = heard is None and len(text.split()) >= PLAIN_WORDS
        self._person_by_words = heard is not None and heard.result == "human"
        if heard is None:
            return None
        if heard.result == "human":
            if heard.certain and not self._invited:
                return self._find("human", "its words", certain=False, heard=heard.phrase)
            return None
        self._machine_by_words = True
        if not heard.certain:
            if self._is_of("human"):
                return self._find("machine", "its words", certain=False, heard=heard.phrase)
            return None
        self._invited |= heard.invites
        return self._find(heard.result, "its words", certain=True, heard=heard.phrase)

    def carrier(self, result: Result) -> Verdict | None:
        """Take what the carrier says."""
        certain = result not in ("human", "unknown", "machine")
        return self._find(result, "the carrier says so", certain=certain)

    # --- what follows ---

    @property
    def silence_ms(self) -> int:
        """Silence in ms since the last voice, or since the answer."""
        return self.now_ms - self._until_ms

    @property
    def speaks(self) -> bool:
        """Whether somebody speaks, or has paused for a moment only."""
        return self._first_ms is not None and (self._voice or self.silence_ms < AFTER_SHORT_MS)

    @property
    def _spoken_ms(self) -> int:
        """Length in ms of the utterance, breaths included."""
        return self._until_ms - self._began_ms

    def _by_tone(self, sign: Sign) -> Verdict | None:
        match sign:
            case Sign.CALLING_FAX if self._first_ms is None:
                return self._find("fax", "the tone of a fax machine that calls", certain=True)
            case Sign.FAX:
                return self._find("fax", "a fax machine's tone", certain=True)
            case Sign.INFORMATION:
                return self._find("unavailable", "the tones before an announcement", certain=True)
            case Sign.BUSY:
                return self._find("unavailable", "a busy tone", certain=True)
            case Sign.RINGING:
                self._rang_until_ms = self.now_ms
            case Sign.BUSY_OR_BEEP if self._first_ms is None:
                return None  # others follow
            case Sign.BEEP | Sign.CALLING_FAX | Sign.BUSY_OR_BEEP if self._may_beep:
                certain = self._is_certain or (
                    self._is_of("machine", None, "unknown") and self._voiced_ms >= SPOKEN_MS
                )
                return self._find("machine_end", "a beep, then silence", certain=certain)
        return None

    @property
    def _may_beep(self) -> bool:
        if self._is_of("human", "unknown"):
            return self._voiced_ms >= SPOKEN_MS and self.now_ms < CORRECTED_MS
        return True

    def _by_silence(self) -> Verdict | None:
        silence = self.silence_ms
        if self._is_of(None):
            if self._first_ms is None:
                return self._nobody()
            return self._after_utterance(silence)
        if self._is_of("machine", "menu", "unavailable") and self._tones.sounding is None:
            if self._is_of("machine") and not self._is_certain:
                if self._person_by_words and silence >= AFTER_SHORT_MS:
                    return self._find("human", "a person's words, then silence", certain=False)
                seems = not self._machine_by_words and self._voiced_ms < NO_PERSON_MS
                if seems and silence >= self._waits_ms:
                    return self._find("human", "it has spoken and waits", certain=False)
            if self._is_of("machine") and silence >= (TONE_DUE_MS if self._invited else ENDED_MS):
                if self._is_certain and not self._invited:
                    return self._find("unavailable", "an announcement is over", certain=True)
                return self._find("machine_end", "silence after it", certain=self._is_certain)
        return None

    @property
    def _waits_ms(self) -> int:
        may_beep = self.now_ms - self._toned_ms < WAITS_PLAIN_MS
        return WAITS_PLAIN_MS if self._has_plain_words and not may_beep else WAITS_MS

    def _after_utterance(self, silence: int) -> Verdict | None:
        spoke, doubtful = self._spoken_ms, self._machine_by_words
        if self._voice or silence < AFTER_SHORT_MS:
            return None
        if self._person_by_words and not doubtful:
            return self._find("human", "a person's words, then silence", certain=False)
        if doubtful:
            if silence >= ENDED_MS:
                return self._find("machine_end", "silence after it", certain=False)
            return None
        if self._first_over and spoke < SHORT_MS and silence < AFTER_MIDDLE_MS:
            return None
        if spoke <= SHORT_MS:
            return self._find("human", "a short utterance, then silence", certain=False)
        if spoke <= MIDDLE_MS and silence >= AFTER_MIDDLE_MS:
            return self._find("human", "an utterance, then silence", certain=False)
        if silence >= self._waits_ms:
            return self._find("human", "it has spoken and waits", certain=False)
        return None

    def _nobody(self) -> Verdict | None:
        rang = self._rang_until_ms
        if self.now_ms >= UNDECIDED_MS:
            return self._find("unknown", "nobody speaks", certain=False)
        if rang is not None:
            over = self.now_ms - rang >= RINGS_MS
            return self._find("unknown", "it rings on", certain=False) if over else None
        sounding = self._tones.sounding
        if self.now_ms >= SILENT_MS and (sounding is None or sounding.lasted_ms > SILENT_MS):
            return self._find("unknown", "nobody speaks", certain=False)
        return None

    # --- verdicts ---

    def _is_of(self, *results: Result | None) -> bool:
        return (None if self.verdict is None else self.verdict.result) in results

    @property
    def _is_certain(self) -> bool:
        return self.verdict is not None and self.verdict.certain

    def _find(self, result: Result, why: str, *, certain: bool, heard: str = "") -> Verdict | None:
        last = self.verdict
        before = None if last is None else last.result
        makes_certain = last is not None and result == before and certain and not last.certain
        beeps_late = before == result == "machine_end" and "beep" in why and not self._beeped
        if result not in FOLLOWS[before] and not makes_certain and not beeps_late:
            return None
        if result == "machine" and not certain and before not in (None, "human"):
            return None
        if before in ("human", "unknown"):
            if self.now_ms > CORRECTED_MS or self.conversed:
                return None
            if before == "human" and result == "machine_end":
                certain = False  # somebody's kitchen beeps, too
        if last is not None and last.certain and result == "human" and before == "machine":
            return None
        if result == "human":
            self._seemed_ms, self._resumed_ms = self._until_ms, None
        self._beeped |= "beep" in why
        self.verdict = Verdict(result, self.now_ms, why, certain, heard)
        return self.verdict
