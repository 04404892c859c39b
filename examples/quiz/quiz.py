"""The questions of the quiz, and where each caller is."""

from typing import Any

QUESTIONS = [
    ("How many legs has a spider?", ["six", "eight", "ten", "twelve"], 2),
    ("Which of these is a planet?", ["Io", "Titan", "Venus", "Ceres"], 3),
    ("How many minutes are in a day?", ["1,440", "1,400", "3,600", "86,400"], 1),
]
places: dict[str, list[int]] = {}
"""Questions asked and right answers, by the caller's number."""


def next_question(call: Any) -> dict[str, Any]:
    """Returns the next question with its answers, or the score after the last one."""
    asked, right = places.setdefault(call.caller, [0, 0])
    if asked == len(QUESTIONS):
        del places[call.caller]
        return {"done": True, "right": right, "of": asked}
    question, answers, _ = QUESTIONS[asked]
    return {"question": question, "answers": dict(enumerate(answers, 1))}


def check_answer(digit: str, call: Any) -> dict[str, Any]:
    """Tells whether an answer is right, and ends the question.

    Args:
        digit: the key that the caller has pressed
    """
    place = places.setdefault(call.caller, [0, 0])
    if place[0] == len(QUESTIONS):
        return {"error": "there is no question left"}
    _, answers, right = QUESTIONS[place[0]]
    place[0] += 1
    place[1] += digit == str(right)
    return {"right": digit == str(right), "answer": answers[right - 1]}
