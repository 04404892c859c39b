"""When a turn ends: the silence that ends it, by the words, the end-of-turn model, and what this
caller's pauses have taught. Pure functions of the facts."""

from dataclasses import dataclass

from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.conversation.turns.patience import Doubt, doubt

ALL_SAID = (Doubt.COMPLETE, Doubt.WHOLE, Doubt.ANSWER)
MAY_BE_OVER = (Doubt.NONE, *ALL_SAID, Doubt.OPEN, Doubt.HESITANT)


@dataclass(frozen=True)
class EndSettings:
    """Thresholds in ms of the end of a turn."""

    ask_end_after: int = 150
    """Silence before the end-of-turn model runs: early enough to hide its latency, late enough that
    most pauses within a sentence are over."""
    ask_end_again: int = 260
    """Further silence before the model runs again after a "no": with more silence it is more
    reliable."""
    ask_end_times: int = 1
    """Maximum runs of the end-of-turn model per pause: a run costs 24 ms of a core with VNNI, more
    of others, and a second one, which only a transcript that breaks off allows time for, seldom
    changes the result."""
    ask_end_takes: int = 110
    """Expected latency of the end-of-turn model. It is not run when silence alone would decide
    first."""
    think_after: int = 150
    """Silence after which the agent may begin its answer, if the words may be the whole turn."""
    think_times: int = 2
    """Maximum answers begun per pause: one to a partial transcript, one to the final."""
    end_likely: float = 0.5
    """Probability from which the model's result counts as the end of the turn."""
    end_silence: int = 340
    """Silence that ends a turn that the words or the model consider complete: longer than the
    breath behind "no" in "no, thank you"."""
    end_silence_unsure: int = 520
    """Silence that ends a turn of which the words say nothing and the model is sure that it is
    incomplete; less in proportion to the square of its doubt."""
    end_silence_open: int = 360
    """Silence that ends a sentence that another may follow, as the model cannot hear: the agent
    begins its answer, which is taken back unheard if the caller goes on before..."""
    answer_open: int = 950
    """...this silence, before which nothing of it is heard, however fast the agent is."""
    end_silence_hesitant: int = 700
    """As `end_silence_open`, of a caller who hesitates: who has paused within the turn before, or
    said "um" or "well", or named a part of a sentence ("on Monday"), or if the model is sure that
    more follows; between the two by the square of its doubt."""
    answer_hesitant: int = 1250
    """As `answer_open`, of such a caller, and of one who names several things."""
    end_silence_listing: int = 1000
    """Silence that ends a turn in which several things are named, and not yet the last."""
    end_silence_dictating: int = 1300
    """Silence that ends a turn in which a number, a name or an address is dictated and not known to
    be complete."""
    end_silence_dangling: int = 1300
    """Silence that ends a turn that breaks off ("I would like to"), whatever the model says."""
    end_silence_searching: int = 2500
    """Silence that ends a turn whose caller thinks or looks something up ("let me see")."""
    end_silence_learned: int = 650
    """Longest silence that ends the turns of a caller who was cut off in this call: the pause that
    was too long, and a little more. 0: nothing is learned."""
    finish_unsure_after: int = 380
    """Silence after which the final transcript is requested even if the model expects more
    speech."""
    end_answer: int = 500
    """Silence that ends a turn of which the words say nothing, if the end-of-turn model has not
    said whether it is complete, or there is none."""


def end_silence(settings: EndSettings, facts: Facts) -> int:
    """Return the silence in ms that ends the turn, given the model's result and the transcript."""
    s = settings
    match doubt_of(facts):
        case Doubt.SEARCHING:
            return s.end_silence_searching
        case Doubt.BREAKS_OFF:
            return s.end_silence_dangling
        case Doubt.DICTATING:
            return s.end_silence_dictating
        case Doubt.LISTING:
            return s.end_silence_listing
    if (hesitation := _hesitation(facts)) is not None:
        waits = _between(s.end_silence_open, s.end_silence_hesitant, hesitation)
    elif doubt_of(facts) in ALL_SAID:
        waits = s.end_silence
    elif facts.end_probability is None:
        waits = s.end_answer
    else:
        waits = _between(s.end_silence, s.end_silence_unsure, _unlikely(facts))
    return max(waits, min(facts.learned_ms, s.end_silence_learned))


def answer_silence(settings: EndSettings, facts: Facts) -> int:
    """Return the silence in ms before which the answer to the turn is not heard."""
    s = settings
    if doubt_of(facts) is Doubt.LISTING:
        return s.answer_hesitant
    hesitation = _hesitation(facts)
    if hesitation is None and doubt_of(facts) is Doubt.ANSWER:
        return s.answer_open
    return 0 if hesitation is None else _between(s.answer_open, s.answer_hesitant, hesitation)


def _hesitation(facts: Facts) -> float | None:
    """Return how likely it is, from 0 to 1, that a sentence that may go on does; None if the turn
    ends with none."""
    match doubt_of(facts):
        case Doubt.HESITANT:
            return 1.0
        case Doubt.OPEN:
            return 1.0 if facts.has_paused else _unlikely(facts)
        case Doubt.WHOLE | Doubt.ANSWER if facts.has_paused:
            return _unlikely(facts)
    return None


def _unlikely(facts: Facts) -> float:
    """Return how unlikely the model makes the end of the turn, from 0 to 1: what it doubts a little
    is over as often as what it is sure of."""
    return (1 - (0.5 if facts.end_probability is None else facts.end_probability)) ** 2


def _between(least: int, most: int, share: float) -> int:
    return round(least + (most - least) * share)


def doubt_of(facts: Facts) -> Doubt:
    """Return what the words of the turn say about its end."""
    text = f"{facts.before} {facts.words}".strip()
    return doubt(text, facts.asked, facts.language) if text else Doubt.NONE
