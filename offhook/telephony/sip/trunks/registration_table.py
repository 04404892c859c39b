"""What a registration does when (RFC 3261 §10.2): state × event → state, action.

unregistered ─▶ registering ─▶ registered ⇄ refreshing ─▶ lapsing    a passing failure
                    │ ▲                                    │         while the binding lives
                    ▼ │                                    ▼
                  waiting   a passing failure            waiting     the binding is gone
                  refused   the registrar says no: asked again, but seldom
stopping ─▶ unregistering ─▶ unregistered
"""

from enum import Enum, StrEnum, auto


class State(StrEnum):
    UNREGISTERED = "unregistered"
    REGISTERING = "registering"
    REGISTERED = "registered"
    REFRESHING = "refreshing"
    """The binding lives, and a REGISTER to keep it is out."""
    LAPSING = "lapsing"
    """The binding lives, but could not be refreshed."""
    WAITING = "waiting"
    REFUSED = "refused"
    STOPPING = "stopping"
    """A REGISTER is out; when its response is here the binding is removed."""
    UNREGISTERING = "unregistering"


class Event(Enum):
    START = auto()
    STOP = auto()
    DUE = auto()
    """The time of a refresh or of another attempt has come."""
    LAPSED = auto()
    """The binding's life is over."""
    ACCEPTED = auto()
    AGAIN = auto()
    """The same server wants the request in other words: with credentials, with a longer life."""
    NEXT = auto()
    """This server does not do it, another one may."""
    EXHAUSTED = auto()
    """No server is left to try."""
    DENIED = auto()


class Do(Enum):
    ASK = auto()
    """A new round, with the server that served us last."""
    ASK_NEXT = auto()
    """The same of the next server."""
    REPEAT = auto()
    REMOVE = auto()
    """Ask for a life of 0 s."""
    BIND = auto()
    """Note the end of the binding and the time of its refresh."""
    BACK_OFF = auto()
    REST = auto()
    """Wait for longer than that."""
    LAPSE = auto()
    FORGET = auto()
    NOTHING = auto()


TRANSITIONS: dict[tuple[State, Event], tuple[State, Do]] = {
    # RFC 3261 §10.2: the first REGISTER, or one after the binding was lost
    (State.UNREGISTERED, Event.START): (State.REGISTERING, Do.ASK),
    (State.REGISTERING, Event.ACCEPTED): (State.REGISTERED, Do.BIND),  # §10.2.4
    (State.REGISTERING, Event.AGAIN): (State.REGISTERING, Do.REPEAT),  # §22.2, §10.2.8
    (State.REGISTERING, Event.NEXT): (State.REGISTERING, Do.ASK_NEXT),  # RFC 3263 §4.3
    (State.REGISTERING, Event.EXHAUSTED): (State.WAITING, Do.BACK_OFF),  # RFC 5626 §4.5
    (State.REGISTERING, Event.DENIED): (State.REFUSED, Do.REST),
    (State.REGISTERING, Event.STOP): (State.STOPPING, Do.NOTHING),  # §10.2: one request at a time
    # the binding lives
    (State.REGISTERED, Event.DUE): (State.REFRESHING, Do.ASK),  # §10.2.4
    (State.REGISTERED, Event.STOP): (State.UNREGISTERING, Do.REMOVE),  # §10.2.2
    (State.REFRESHING, Event.ACCEPTED): (State.REGISTERED, Do.BIND),
    (State.REFRESHING, Event.AGAIN): (State.REFRESHING, Do.REPEAT),
    (State.REFRESHING, Event.NEXT): (State.REFRESHING, Do.ASK_NEXT),
    (State.REFRESHING, Event.EXHAUSTED): (State.LAPSING, Do.BACK_OFF),
    (State.REFRESHING, Event.DENIED): (State.REFUSED, Do.REST),
    (State.REFRESHING, Event.LAPSED): (State.REGISTERING, Do.LAPSE),
    (State.REFRESHING, Event.STOP): (State.STOPPING, Do.NOTHING),
    (State.LAPSING, Event.DUE): (State.REFRESHING, Do.ASK),
    (State.LAPSING, Event.LAPSED): (State.WAITING, Do.LAPSE),
    (State.LAPSING, Event.STOP): (State.UNREGISTERING, Do.REMOVE),
    # there is none
    (State.WAITING, Event.DUE): (State.REGISTERING, Do.ASK),
    (State.WAITING, Event.STOP): (State.UNREGISTERED, Do.FORGET),
    (State.REFUSED, Event.DUE): (State.REGISTERING, Do.ASK),
    (State.REFUSED, Event.STOP): (State.UNREGISTERED, Do.FORGET),
    # the end; a registrar that does not answer any more forgets the binding by itself
    (State.STOPPING, Event.ACCEPTED): (State.UNREGISTERING, Do.REMOVE),
    (State.STOPPING, Event.AGAIN): (State.UNREGISTERING, Do.REMOVE),
    (State.STOPPING, Event.NEXT): (State.UNREGISTERED, Do.FORGET),
    (State.STOPPING, Event.EXHAUSTED): (State.UNREGISTERED, Do.FORGET),
    (State.STOPPING, Event.DENIED): (State.UNREGISTERED, Do.FORGET),
    (State.STOPPING, Event.LAPSED): (State.STOPPING, Do.LAPSE),
    (State.UNREGISTERING, Event.ACCEPTED): (State.UNREGISTERED, Do.FORGET),
    (State.UNREGISTERING, Event.AGAIN): (State.UNREGISTERING, Do.REPEAT),
    (State.UNREGISTERING, Event.NEXT): (State.UNREGISTERED, Do.FORGET),
    (State.UNREGISTERING, Event.EXHAUSTED): (State.UNREGISTERED, Do.FORGET),
    (State.UNREGISTERING, Event.DENIED): (State.UNREGISTERED, Do.FORGET),
    (State.UNREGISTERING, Event.LAPSED): (State.UNREGISTERING, Do.LAPSE),
}
"""State × event → state, action. What is not here changes nothing."""
