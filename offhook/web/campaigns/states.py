"""The states of a campaign and of its recipients, and what changes them."""

from collections.abc import Mapping
from typing import Literal, get_args

from offhook.web.campaigns.errors import WrongState

CampaignState = Literal["running", "paused", "completed", "cancelled"]
CampaignEvent = Literal["pause", "resume", "append", "cancel", "finish"]
Action = Literal["pause", "resume", "cancel"]
ACTIONS: tuple[Action, ...] = get_args(Action)

CAMPAIGN: Mapping[tuple[CampaignState, CampaignEvent], CampaignState] = {
    ("running", "pause"): "paused",  # calls in progress go on
    ("running", "resume"): "running",
    ("running", "append"): "running",
    ("running", "cancel"): "cancelled",
    ("running", "finish"): "completed",  # nobody waits, and no call is in progress
    ("paused", "pause"): "paused",
    ("paused", "resume"): "running",
    ("paused", "append"): "paused",
    ("paused", "cancel"): "cancelled",
    ("completed", "append"): "running",
    ("cancelled", "cancel"): "cancelled",  # asked for twice
}
"""Whatever is not here is refused."""

RecipientState = Literal["waiting", "dialling", "done", "unknown", "blocked", "cancelled"]
RECIPIENT_STATES: tuple[RecipientState, ...] = get_args(RecipientState)
"""Waits for a call; is being called, or about to be; was called, and is not called again; was about
to be called when a server stopped that has left no record of it; is on the do-not-call list; was
given up with the campaign."""
RecipientEvent = Literal["dial", "no_line", "again", "end", "lose", "block", "cancel"]

RECIPIENT: Mapping[tuple[RecipientState, RecipientEvent], RecipientState] = {
    ("waiting", "dial"): "dialling",  # written before anything is sent
    ("waiting", "block"): "blocked",
    ("waiting", "cancel"): "cancelled",
    ("dialling", "no_line"): "waiting",  # nothing was sent
    ("dialling", "again"): "waiting",  # the outcome allows another attempt
    ("dialling", "end"): "done",
    ("dialling", "lose"): "unknown",  # may have been called: not again by default
    ("unknown", "again"): "waiting",
    ("unknown", "end"): "done",  # its record has come late, from a spool or another server
    ("waiting", "again"): "waiting",  # likewise, of one who is called again after "unknown"
    ("waiting", "end"): "done",
}
"""Whatever is not here cannot happen, and is left as it is."""


def changed(state: CampaignState, event: CampaignEvent) -> CampaignState:
    """Returns the next state of a campaign. Raises WrongState."""
    if (state, event) not in CAMPAIGN:
        raise WrongState(f"the campaign is {state}: it cannot {event}")
    return CAMPAIGN[state, event]


def before(event: RecipientEvent) -> tuple[RecipientState, ...]:
    """Returns the states of a recipient in which something can happen."""
    return tuple(state for state, each in RECIPIENT if each == event)
