"""What each signal alone could reach: the model, the words, the caller's earlier pauses, and all.

The turns are played to a server that waits for seconds, so that each silence is heard to its end
with what was known in it. A signal says how much the end is doubted. Silences of more doubt than
all but a few ends of turns without pauses have are waited through; a turn whose other silences are
longer than a budget is given to the agent too early.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from benchmarks.turn_taking.play import Heard
from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.conversation.turns.patience import Doubt, doubt
from offhook.pipeline.conversation.turns.turn import TurnSettings

PATIENT_MS = 3000
_SILENCES: dict[str, Any] = {
    one.name: PATIENT_MS for one in fields(TurnSettings) if one.name.startswith("end_silence")
}
PATIENT = replace(TurnSettings(), end_answer=PATIENT_MS, **_SILENCES)
BUDGETS_MS = (300, 400, 500, 600, 800)
"""Silence in ms, by the voice detector, after which a turn that is not doubted ends."""
DOUBTED = 0.05
"""Share of the turns without pauses that may be waited for longer."""
PATIENCE = tuple(Doubt)
"""From the least doubt to the most."""


def model(facts: Facts) -> float:
    return 0.5 if facts.end_probability is None else 1 - facts.end_probability


def words(facts: Facts) -> float:
    return PATIENCE.index(doubt(facts.words, facts.asked, facts.language))


def words_and_pauses(facts: Facts) -> float:
    least = PATIENCE.index(Doubt.HESITANT) if facts.has_paused else 0
    return max(words(facts), least)


def everything(facts: Facts) -> float:
    return words_and_pauses(facts) + model(facts)


SIGNALS: dict[str, Callable[[Facts], float]] = {
    "silence alone": lambda facts: 0.0,
    "the model": model,
    "the words": words,
    "the words, and pauses before": words_and_pauses,
    "all": everything,
}


def table(heard: Sequence[Heard], reply_ms: int) -> list[dict[str, Any]]:
    """For each signal and budget, the share of turns with pauses that is given to the agent too
    early, and that is cut off by an agent who is heard `reply_ms` later, in per cent."""
    plain = [one.silences[-1] for one in heard if not one.utterance.pauses]
    paused = [one.silences[:-1] for one in heard if one.utterance.pauses]
    rows = []
    for name, doubted in SIGNALS.items():
        most = np.quantile([doubted(last) for last in plain], 1 - DOUBTED, method="higher")
        longest = [
            max((each.silence_ms for each in silences if doubted(each) <= most), default=0)
            for silences in paused
        ]
        told: dict[str, Any] = {"signal": name}
        for budget in BUDGETS_MS:
            early = np.mean([ms > budget for ms in longest])
            cut = np.mean([ms > budget + reply_ms for ms in longest])
            told[f"{budget} ms"] = f"{100 * early:.0f}, {100 * cut:.0f}"
        rows.append(told)
    return rows
