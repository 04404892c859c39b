"""The life of a call as a table: state × event → state, action (RFC 3261 §13–15).

Changes of the media within an established call have states of their own, which do not touch
these: see `session_modification.py`. What has no row comes too late or too early and is ignored.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple, Protocol

from offhook.telephony.call_record import EndedBy


class SessionState(Enum):
    CALLING = auto()
    """Our INVITE is out, nothing has come back."""
    PROCEEDING = auto()
    """A provisional response has come."""
    OFFERED = auto()
    """They took the call with an offer of theirs: the ACK waits for our answer."""
    CANCELLING = auto()
    """We gave up; the INVITE has no final response yet."""
    RECEIVED = auto()
    """Their INVITE is unanswered."""
    ANSWERED = auto()
    """Our 2xx is out, no ACK has come."""
    LEAVING = auto()
    """The same, and we want to hang up: no BYE before the ACK (§15)."""
    ESTABLISHED = auto()
    ENDING = auto()
    """Our BYE is out."""
    ENDED = auto()


OVER = frozenset(
    {SessionState.CANCELLING, SessionState.LEAVING, SessionState.ENDING, SessionState.ENDED}
)
"""The call has ended for its owner, whatever is still being said about it."""
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
    """A 2xx; our offer is answered, or theirs has been before."""
    SUCCESS_OFFER = auto()
    """A 2xx with an offer."""
    SUCCESS_BARE = auto()
    """A 2xx that leaves the call without media: no answer, or no offer."""
    FAILURE = auto()
    """A response from 300 on."""
    ACK = auto()
    ACK_BARE = auto()
    """An ACK without the answer that was due in it."""
    CANCEL = auto()
    BYE = auto()
    GONE = auto()
    """The far end does not know the dialog (481). Before the ACK that means nothing: what we asked
    has overtaken what made the dialog."""
    # from time and the network
    FAILED = auto()
    """The INVITE came to nothing: no response, or no way."""
    RANG_OUT = auto()
    NO_ACK = auto()
    NO_PRACK = auto()
    LOST = auto()
    """No answer to a request within the call, or no refresh of it."""
    BYE_DONE = auto()


class Action(Enum):
    NOTHING = auto()
    PROGRESS = auto()
    """Tell the provisional response."""
    CONFIRM = auto()
    """Send the ACK and tell that the call is taken."""
    HOLD_ACK = auto()
    """Tell the offer in the 2xx."""
    ACK_ANSWER = auto()
    """Send the ACK with our answer."""
    ACK_AND_BYE = auto()
    """Take the 2xx only to end the call, and tell the end."""
    GIVE_UP = auto()
    """CANCEL, and tell the end."""
    ACCEPT = auto()
    """Send the 2xx, to be repeated until the ACK."""
    REFUSE = auto()
    """Send the final response, and tell the end."""
    CONFIRMED = auto()
    """Tell that the ACK has come."""
    BYE = auto()
    """Send it, and tell the end."""
    TELL = auto()
    """Tell the end."""


class Lifecycle(Protocol):
    """The life of the call as the parts of a session see it."""

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
        """Follow the table; an event that has no row in this state is ignored. `status` and
        `reason` describe the end, if it is one; `by`: who ends the call, where the event alone
        does not say."""
        ...


class Transition(NamedTuple):
    state: SessionState
    action: Action


def _caller() -> dict[tuple[SessionState, Event], Transition]:
    rows: dict[tuple[SessionState, Event], Transition] = {}
    for state in (SessionState.CALLING, SessionState.PROCEEDING):
        rows |= {
            # RFC 3261 §13.2.2.1 and §13.2.2.4; a 2xx without media gets its ACK all the same
            (state, Event.PROVISIONAL): Transition(SessionState.PROCEEDING, Action.PROGRESS),
            (state, Event.SUCCESS): Transition(SessionState.ESTABLISHED, Action.CONFIRM),
            (state, Event.SUCCESS_OFFER): Transition(SessionState.OFFERED, Action.HOLD_ACK),
            (state, Event.SUCCESS_BARE): Transition(SessionState.ENDING, Action.ACK_AND_BYE),
            # §13.2.2.2, §13.2.2.3, §8.1.3.1
            (state, Event.FAILURE): Transition(SessionState.ENDED, Action.TELL),
            (state, Event.FAILED): Transition(SessionState.ENDED, Action.TELL),
            # §9.1: the CANCEL waits for a provisional response by itself
            (state, Event.HANG_UP): Transition(SessionState.CANCELLING, Action.GIVE_UP),
            (state, Event.RANG_OUT): Transition(SessionState.CANCELLING, Action.GIVE_UP),
            # §15 allows no BYE of theirs here; one that comes means what it says
            (state, Event.BYE): Transition(SessionState.CANCELLING, Action.GIVE_UP),
        }
    return rows


TABLE: Mapping[tuple[SessionState, Event], Transition] = {
    **_caller(),
    # The CANCEL and the 2xx crossed (§9.1), or the CANCEL did its work.
    (SessionState.CANCELLING, Event.SUCCESS): Transition(SessionState.ENDING, Action.ACK_AND_BYE),
    (SessionState.CANCELLING, Event.SUCCESS_OFFER): Transition(
        SessionState.ENDING, Action.ACK_AND_BYE
    ),
    (SessionState.CANCELLING, Event.SUCCESS_BARE): Transition(
        SessionState.ENDING, Action.ACK_AND_BYE
    ),
    (SessionState.CANCELLING, Event.FAILURE): Transition(SessionState.ENDED, Action.NOTHING),
    (SessionState.CANCELLING, Event.FAILED): Transition(SessionState.ENDED, Action.NOTHING),
    # §13.2.2.4: an offer in the 2xx has its answer in the ACK
    (SessionState.OFFERED, Event.ANSWER): Transition(SessionState.ESTABLISHED, Action.ACK_ANSWER),
    (SessionState.OFFERED, Event.HANG_UP): Transition(SessionState.ENDING, Action.ACK_AND_BYE),
    (SessionState.OFFERED, Event.BYE): Transition(SessionState.ENDED, Action.TELL),
    # We are called: §13.3.1
    (SessionState.RECEIVED, Event.ACCEPT): Transition(SessionState.ANSWERED, Action.ACCEPT),
    (SessionState.RECEIVED, Event.REFUSE): Transition(SessionState.ENDED, Action.REFUSE),
    (SessionState.RECEIVED, Event.HANG_UP): Transition(SessionState.ENDED, Action.REFUSE),
    (SessionState.RECEIVED, Event.RANG_OUT): Transition(
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
    (SessionState.RECEIVED, Event.FAILED): Transition(SessionState.ENDED, Action.TELL),
    # §13.3.1.4
    (SessionState.ANSWERED, Event.ACK): Transition(SessionState.ESTABLISHED, Action.CONFIRMED),
    (SessionState.ANSWERED, Event.ACK_BARE): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.ANSWERED, Event.NO_ACK): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.ANSWERED, Event.HANG_UP): Transition(SessionState.LEAVING, Action.TELL),
    (SessionState.ANSWERED, Event.LOST): Transition(SessionState.LEAVING, Action.TELL),
    (SessionState.ANSWERED, Event.BYE): Transition(SessionState.ENDED, Action.TELL),
    # §15: no BYE of ours before the ACK, or before it is certain that none comes
    (SessionState.LEAVING, Event.ACK): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.LEAVING, Event.ACK_BARE): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.LEAVING, Event.NO_ACK): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.LEAVING, Event.BYE): Transition(SessionState.ENDED, Action.NOTHING),
    # §15.1; §12.2.1.2 for what is lost or gone; §14.2 for the 2xx of a re-INVITE without ACK
    (SessionState.ESTABLISHED, Event.HANG_UP): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.ESTABLISHED, Event.BYE): Transition(SessionState.ENDED, Action.TELL),
    (SessionState.ESTABLISHED, Event.LOST): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.ESTABLISHED, Event.NO_ACK): Transition(SessionState.ENDING, Action.BYE),
    (SessionState.ESTABLISHED, Event.GONE): Transition(SessionState.ENDED, Action.TELL),
    # Whatever the answer to a BYE is, the call is over (§15.1.1). One of theirs that crosses ours
    # has its 200 and changes nothing.
    (SessionState.ENDING, Event.BYE_DONE): Transition(SessionState.ENDED, Action.NOTHING),
}
