"""What became of a call of a campaign."""

from typing import Literal, get_args

from offhook.media.end_reason import End
from offhook.telephony.call_record import CallRecord

Outcome = Literal[
    "answered", "machine", "message_left", "busy", "no_answer", "refused", "failed", "unknown"
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""A person has answered, or that was not asked; a machine; the message was left on it; the line was
busy; nobody answered; the far end or the number refuses, and would again; the network, the trunk or
the server failed; the server stopped in the middle."""
Retried = Literal["machine", "busy", "no_answer", "failed", "unknown"]
RETRIED: tuple[Retried, ...] = get_args(Retried)
"""Outcomes after which a recipient may be called again."""

BUSY = (486, 600)
NO_ANSWER = (408, 480, 487)
"""SIP statuses (RFC 3261 §21) without an answer: it rang for too long, nobody is available, or it
was given up."""
REFUSED = (
    *(403, 404, 410, 413, 414, 416, 433, 484, 485, 493),  # the number, or our asking, is wrong
    *(603, 604, 607, 608),  # declined, does not exist anywhere, unwanted, rejected
)
MACHINES = ("machine", "machine_end", "unavailable", "fax")


def outcome_of(record: CallRecord) -> Outcome:
    """Returns the outcome of a call that has ended."""
    if record.answered is not None:
        if record.message_left:
            return "message_left"
        return "machine" if record.answered_by in MACHINES else "answered"
    if record.status in BUSY:
        return "busy"
    silent = record.status == 408 and not record.end_reason.startswith(End.NO_ANSWER)
    if record.status in NO_ANSWER and not silent:
        return "no_answer"
    return "refused" if record.status in REFUSED else "failed"
