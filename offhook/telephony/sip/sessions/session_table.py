"""The life of a call as a table: state × event → state, action (RFC 3261 §13–15).

Media changes within an established call have their own states, which do not affect these: see
`session_modification.py`. Events without a row come too late or too early and are ignored.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple, Protocol

from offhook.telephony.call_record import EndedBy


class SessionState(Enum):
    CALLING = auto()
    """Our INVITE was sent; no response yet."""
    PROCEEDING = auto()
    """A provisional response was received."""
    OFFERED = auto()
    """They answered with an offer: the ACK waits for our answer."""
    CANCELLING = auto()
    """We cancelled; the INVITE has no final response yet."""
    RECEIVED = auto()
    """Their INVITE is unanswered."""
    ANSWERED = auto()
    """Our 2xx was sent; no ACK yet."""
    LEAVING = auto()
    """The same, and we want to hang up: no BYE before the ACK (§15)."""
    ESTABLISHED = auto()
    ENDING = auto()
    """Our BYE was sent."""
    ENDED = auto()


OVER = frozenset(
    {SessionState.CANCELLING, SessionState.LEAVING, SessionState.ENDING, SessionState.ENDED}
)
"""States in which the call has ended for its owner, whatever messages remain."""
RINGING = frozenset({SessionState.CALLING, SessionState.PROCEEDING, SessionState.RECEIVED})


class Event(Enum):
    # from our user
    ACCEPT = auto()
    REFUSE = auto()
    HANG_UP = auto()
    ANSWER = auto()
    """Our answer to the offer in their 2xx."""
    # from the far end
    PROVISIONAL = auto()
    SUCCESS = auto()
    """A 2xx; our offer is answered, or theirs was before."""
    SUCCESS_OFFER = auto()
    """A 2xx with an offer."""
    SUCCESS_BARE = auto()
    """A 2xx that leaves the call without media: no answer, or no offer."""
    FAILURE = auto()
    """A response from 300 on."""
    ACK = auto()
    ACK_BARE = auto()
    """An ACK without the answer that was due."""
    CANCEL = auto()
    BYE = auto()
    GONE = auto()
    """The far end does not know the dialog (481). Ignored before the ACK: our request has overtaken
    the creation of the dialog."""
    # from time and the network
    FAILED = auto()
    """The INVITE failed: no response, or no route."""
    UNANSWERED = auto()
    """No response at all to the INVITE while another server is left to try."""
    RING_TIMEOUT = auto()
    NO_ACK = auto()
    NO_PRACK = auto()
    LOST = auto()
    """No response to a request within the call, or no refresh."""
    LEAVE = auto()
    """Another server continues the dialog: nothing more is sent in it."""
    BYE_DONE = auto()


class Action(Enum):
    NOTHING = auto()
    PROGRESS = auto()
    """Report the provisional response."""
    CONFIRM = auto()
    """Send the ACK and report the answer."""
    HOLD_ACK = auto()
    """Report the offer in the 2xx."""
    ACK_ANSWER = auto()
    """Send the ACK with our answer."""
    ACK_AND_BYE = auto()
    """Acknowledge the 2xx, send BYE and report the end."""
    GIVE_UP = auto()
    """Send CANCEL and report the end."""
    ACCEPT = auto()
    """Send the 2xx, retransmitted until the ACK."""
    REFUSE = auto()
    """Send the final response and report the end."""
    CONFIRMED = auto()
    """Report the ACK."""
    BYE = auto()
    """Send BYE and report the end."""
    REPORT_END = auto()
    """Report the end."""


class Lifecycle(Protocol):
    """The life of the call, as the parts of a session see it."""

    @property
    def state(self) -> SessionState: ...

    def apply(
        self,
        event: Event,
        now: float,
        status: int = 0,
        reason: str = "",
        sdp: str | None = None,
        *,
        by: EndedBy | None = None,
    ) -> None:
        """Apply an event by the table; without a row in this state it is ignored. `status` and
        `reason` describe the end, if it is one; `by` says who ended the call if the event alone
        does not."""
        ...


class Transition(NamedTuple):
    state: SessionState
    action: Action


def _caller() -> dict[tuple[SessionState, Event], Transition]:
    rows: dict[tuple[SessionState, Event], Transition] = {}
    for state in (SessionState.CALLING, SessionState.PROCEEDING):
        rows |= {
            # RFC 3261 §13.2.2.1 and §13.2.2.4; a 2xx without media is acknowledged all the same
            (state, Event.PROVISIONAL): Transition(SessionState.PROCEEDING, Action.PROGRESS),
            (state, Event.SUCCESS): Transition(SessionState.ESTABLISHED, Action.CONFIRM),
            (state, Event.SUCCESS_OFFER): Transition(SessionState.OFFERED, Action.HOLD_ACK),
            (state, Event.SUCCESS_BARE): Transition(SessionState.ENDING, Action.ACK_AND_BYE),
            # §13.2.2.2, §13.2.2.3, §8.1.3.1
            (state, Event.FAILURE): Transition(SessionState.ENDED, Action.REPORT_END),
            (state, Event.FAILED): Transition(SessionState.ENDED, Action.REPORT_END),
            # §9.1: the CANCEL waits for a provisional response by itself
            (state, Event.HANG_UP): Transition(SessionState.CANCELLING, Action.GIVE_UP),
            (state, Event.RING_TIMEOUT): Transition(SessionState.CANCELLING, Action.GIVE_UP),
            # §15 does not allow their BYE here; if one comes, obey it
            (state, Event.BYE): Transition(SessionState.CANCELLING, Action.GIVE_UP),
        }
    return rows


TABLE: Mapping[tuple[SessionState, Event], Transition] = {
    **_caller(),
    # RFC 3263 §4.3, long before Timer B; a late 2xx is hung up like one that crossed a CANCEL
    (SessionState.CALLING, Event.UNANSWERED): Transition(SessionState.CANCELLING, Action.GIVE_UP),
    # The CANCEL and the 2xx crossed (§9.1), or the CANCEL succeeded.
    (SessionState.CANCELLING, Event.SUCCESS): Transition(SessionState.ENDING, Action.ACK_AND_BYE),
    (SessionState.CANCELLING, Event.SUCCESS_OFFER): Transition(
        SessionState.ENDING, Action.ACK_AND_BYE
    ),
    (SessionState.CANCELLING, Event.SUCCESS_BARE): Transition(
        SessionState.ENDING, Action.ACK_AND_BYE
    ),
    (SessionState.CANCELLING, Event.FAILURE): Transition(SessionState.ENDED, Action.NOTHING),
    (SessionState.CANCELLING, Event.FAILED): Transition(SessionState.ENDED, Action.NOTHING),
    # §13.2.2.4: an offer in the 2xx is answered in the ACK
    (SessionState.OFFERED, Event.ANSWER): Transition(SessionState.ESTABLISHED, Action.ACK_ANSWER),
    (SessionState.OFFERED, Event.HANG_UP): Transition(SessionState.ENDING, Action.ACK_AND_BYE),
    (SessionState.OFFERED, Event.BYE): Transition(SessionState.ENDED, Action.REPORT_END),
    # Inbound calls: §13.3.1
    (SessionState.RECEIVED, Event.ACCEPT): Transition(SessionState.ANSWERED, Action.ACCEPT),
    (SessionState.RECEIVED, Event.REFUSE): Transition(SessionState.ENDED, Action.REFUSE),
    (SessionState.RECEIVED, Event.HANG_UP): Transition(SessionState.ENDED, Action.REFUSE),
    (SessionState.RECEIVED, Event.RING_TIMEOUT): Transition(
        SessionState.ENDED, Action.REFUSE
    ),  # §13.3.1.1
    (SessionState.RECEIVED, Event.CANCEL): Transition(
        SessionState.ENDED, Action.REFUSE
    ),  # 487, §9.2
    (SessionState.RECEIVED, Event.BYE): Transition(
        SessionState.ENDED, Action.REFUSE
    ),  # 487, §15.1.2
    (SessionState.RECEIVED, Event.NO_PRACK): Transition(
        SessionState.ENDED, Action.REFUSE
    ),  # RFC 3262 §3
    (SessionState.RECEIVED, Event.FAILED): Transition(SessionState.ENDED, Action.REPORT_END),
    # §13.3.1.4
    (SessionState.ANSWERED, Event.ACK): Transition(SessionState.ESTABLISHED, Action.CONFIRMED),
    (SessionState.ANSWERED, Event.ACK_BARE): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.ANSWERED, Event.NO_ACK): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.ANSWERED, Event.HANG_UP): Transition(SessionState.LEAVING, Action.REPORT_END),
    (SessionState.ANSWERED, Event.LOST): Transition(SessionState.LEAVING, Action.REPORT_END),
    (SessionState.ANSWERED, Event.BYE): Transition(SessionState.ENDED, Action.REPORT_END),
    # §15: no BYE of ours before the ACK, or before it is certain that none comes
    (SessionState.LEAVING, Event.ACK): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.LEAVING, Event.ACK_BARE): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.LEAVING, Event.NO_ACK): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.LEAVING, Event.BYE): Transition(SessionState.ENDED, Action.NOTHING),
    # §15.1; §12.2.1.2 for LOST and GONE; §14.2 for the 2xx of a re-INVITE without ACK
    (SessionState.ESTABLISHED, Event.HANG_UP): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.ESTABLISHED, Event.BYE): Transition(SessionState.ENDED, Action.REPORT_END),
    (SessionState.ESTABLISHED, Event.LOST): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.ESTABLISHED, Event.NO_ACK): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.ESTABLISHED, Event.GONE): Transition(SessionState.ENDED, Action.REPORT_END),
    (SessionState.ANSWERED, Event.LEAVE): Transition(SessionState.ENDED, Action.REPORT_END),
    (SessionState.ESTABLISHED, Event.LEAVE): Transition(SessionState.ENDED, Action.REPORT_END),
    # The call has ended whatever the response to BYE (§15.1.1). A BYE of theirs that crosses ours
    # gets its 200 and changes nothing.
    (SessionState.ENDING, Event.BYE_DONE): Transition(SessionState.ENDED, Action.NOTHING),
}
