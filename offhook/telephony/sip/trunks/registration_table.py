"""What a registration does when (RFC 3261 §10.2): state × event → state, action.

unregistered ─▶ registering ─▶ registered ⇄ refreshing ─▶ lapsing    a passing failure
                    │ ▲                                    │         while the binding lives
                    ▼ │                                    ▼
                  waiting   a passing failure            waiting     the binding is gone
                  refused   the registrar says no: asked again, but seldom
stopping ─▶ unregistering ─▶ unregistered
"""

from enum import Enum, StrEnum, auto


class RegistrationState(StrEnum):
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


class Action(Enum):
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


TRANSITIONS: dict[tuple[RegistrationState, Event], tuple[RegistrationState, Action]] = {
    # RFC 3261 §10.2: the first REGISTER, or one after the binding was lost
    (RegistrationState.UNREGISTERED, Event.START): (RegistrationState.REGISTERING, Action.ASK),
    (RegistrationState.REGISTERING, Event.ACCEPTED): (
        RegistrationState.REGISTERED,
        Action.BIND,
    ),  # §10.2.4
    (RegistrationState.REGISTERING, Event.AGAIN): (
        RegistrationState.REGISTERING,
        Action.REPEAT,
    ),  # §22.2, §10.2.8
    (RegistrationState.REGISTERING, Event.NEXT): (
        RegistrationState.REGISTERING,
        Action.ASK_NEXT,
    ),  # RFC 3263 §4.3
    (RegistrationState.REGISTERING, Event.EXHAUSTED): (
        RegistrationState.WAITING,
        Action.BACK_OFF,
    ),  # RFC 5626 §4.5
    (RegistrationState.REGISTERING, Event.DENIED): (RegistrationState.REFUSED, Action.REST),
    (RegistrationState.REGISTERING, Event.STOP): (
        RegistrationState.STOPPING,
        Action.NOTHING,
    ),  # §10.2: one request at a time
    # the binding lives
    (RegistrationState.REGISTERED, Event.DUE): (
        RegistrationState.REFRESHING,
        Action.ASK,
    ),  # §10.2.4
    (RegistrationState.REGISTERED, Event.STOP): (
        RegistrationState.UNREGISTERING,
        Action.REMOVE,
    ),  # §10.2.2
    (RegistrationState.REFRESHING, Event.ACCEPTED): (RegistrationState.REGISTERED, Action.BIND),
    (RegistrationState.REFRESHING, Event.AGAIN): (RegistrationState.REFRESHING, Action.REPEAT),
    (RegistrationState.REFRESHING, Event.NEXT): (RegistrationState.REFRESHING, Action.ASK_NEXT),
    (RegistrationState.REFRESHING, Event.EXHAUSTED): (RegistrationState.LAPSING, Action.BACK_OFF),
    (RegistrationState.REFRESHING, Event.DENIED): (RegistrationState.REFUSED, Action.REST),
    (RegistrationState.REFRESHING, Event.LAPSED): (RegistrationState.REGISTERING, Action.LAPSE),
    (RegistrationState.REFRESHING, Event.STOP): (RegistrationState.STOPPING, Action.NOTHING),
    (RegistrationState.LAPSING, Event.DUE): (RegistrationState.REFRESHING, Action.ASK),
    (RegistrationState.LAPSING, Event.LAPSED): (RegistrationState.WAITING, Action.LAPSE),
    (RegistrationState.LAPSING, Event.STOP): (RegistrationState.UNREGISTERING, Action.REMOVE),
    # there is none
    (RegistrationState.WAITING, Event.DUE): (RegistrationState.REGISTERING, Action.ASK),
    (RegistrationState.WAITING, Event.STOP): (RegistrationState.UNREGISTERED, Action.FORGET),
    (RegistrationState.REFUSED, Event.DUE): (RegistrationState.REGISTERING, Action.ASK),
    (RegistrationState.REFUSED, Event.STOP): (RegistrationState.UNREGISTERED, Action.FORGET),
    # the end; a registrar that does not answer any more forgets the binding by itself
    (RegistrationState.STOPPING, Event.ACCEPTED): (RegistrationState.UNREGISTERING, Action.REMOVE),
    (RegistrationState.STOPPING, Event.AGAIN): (RegistrationState.UNREGISTERING, Action.REMOVE),
    (RegistrationState.STOPPING, Event.NEXT): (RegistrationState.UNREGISTERED, Action.FORGET),
    (RegistrationState.STOPPING, Event.EXHAUSTED): (RegistrationState.UNREGISTERED, Action.FORGET),
    (RegistrationState.STOPPING, Event.DENIED): (RegistrationState.UNREGISTERED, Action.FORGET),
    (RegistrationState.STOPPING, Event.LAPSED): (RegistrationState.STOPPING, Action.LAPSE),
    (RegistrationState.UNREGISTERING, Event.ACCEPTED): (
        RegistrationState.UNREGISTERED,
        Action.FORGET,
    ),
    (RegistrationState.UNREGISTERING, Event.AGAIN): (
        RegistrationState.UNREGISTERING,
        Action.REPEAT,
    ),
    (RegistrationState.UNREGISTERING, Event.NEXT): (RegistrationState.UNREGISTERED, Action.FORGET),
    (RegistrationState.UNREGISTERING, Event.EXHAUSTED): (
        RegistrationState.UNREGISTERED,
        Action.FORGET,
    ),
    (RegistrationState.UNREGISTERING, Event.DENIED): (
        RegistrationState.UNREGISTERED,
        Action.FORGET,
    ),
    (RegistrationState.UNREGISTERING, Event.LAPSED): (
        RegistrationState.UNREGISTERING,
        Action.LAPSE,
    ),
}
"""State × event → state, action. What is not here changes nothing."""
