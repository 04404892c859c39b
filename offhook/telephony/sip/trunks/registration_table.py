"""The registration state machine (RFC 3261 §10.2): state × event → state, action.

unregistered ─▶ registering ─▶ registered ⇄ refreshing ─▶ lapsing    a temporary failure
                    │ ▲                                    │         while the binding lives
                    ▼ │                                    ▼
                  waiting   a temporary failure            waiting     the binding is gone
                  waiting   from any bound state: its connection broke (RFC 5626 §4.5)
                  lapsing   from registered: the registrar keeps no connections
                  refused   rejected by the registrar: retried, but rarely
stopping ─▶ unregistering ─▶ unregistered
"""

from enum import Enum, StrEnum, auto


class RegistrationState(StrEnum):
    UNREGISTERED = "unregistered"
    REGISTERING = "registering"
    REGISTERED = "registered"
    REFRESHING = "refreshing"
    """Bound, with a REGISTER pending to refresh it."""
    LAPSING = "lapsing"
    """Bound, but could not be refreshed."""
    WAITING = "waiting"
    REFUSED = "refused"
    STOPPING = "stopping"
    """A REGISTER is pending; the binding is removed after its response."""
    UNREGISTERING = "unregistering"


class Event(Enum):
    START = auto()
    STOP = auto()
    BROKEN = auto()
    """The connection that the binding belongs to is gone."""
    CLOSED = auto()
    """Gone as usual: this registrar keeps no connections, and calls come over others."""
    DUE = auto()
    """A refresh or another attempt is due."""
    LAPSED = auto()
    """The binding has expired."""
    ACCEPTED = auto()
    AGAIN = auto()
    """The same server wants the request changed: with credentials, or a longer expiry."""
    NEXT = auto()
    """This server failed; another may succeed."""
    EXHAUSTED = auto()
    """No server is left to try."""
    DENIED = auto()


class Action(Enum):
    START_ROUND = auto()
    """Start a round, with the server used last."""
    TRY_NEXT = auto()
    """Try the next server."""
    REPEAT = auto()
    REMOVE = auto()
    """Request an expiry of 0 s."""
    BIND = auto()
    """Record the binding's expiry and schedule its refresh."""
    BACK_OFF = auto()
    RECONNECT = auto()
    """The binding is worth nothing: register again, at once the first time."""
    DEFER = auto()
    """The same while the binding counts: refresh it later, the more often its connection broke."""
    REST = auto()
    """Wait for longer than that."""
    LAPSE = auto()
    FORGET = auto()
    NOTHING = auto()


TRANSITIONS: dict[tuple[RegistrationState, Event], tuple[RegistrationState, Action]] = {
    # RFC 3261 §10.2: the first REGISTER, or one after the binding was lost
    (RegistrationState.UNREGISTERED, Event.START): (
        RegistrationState.REGISTERING,
        Action.START_ROUND,
    ),
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
        Action.TRY_NEXT,
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
    # bound
    (RegistrationState.REGISTERED, Event.DUE): (
        RegistrationState.REFRESHING,
        Action.START_ROUND,
    ),  # §10.2.4
    (RegistrationState.REGISTERED, Event.STOP): (
        RegistrationState.UNREGISTERING,
        Action.REMOVE,
    ),  # §10.2.2
    (RegistrationState.REGISTERED, Event.BROKEN): (
        RegistrationState.WAITING,
        Action.RECONNECT,
    ),  # RFC 5626 §4.5
    (RegistrationState.REGISTERED, Event.CLOSED): (RegistrationState.LAPSING, Action.DEFER),
    (RegistrationState.REFRESHING, Event.BROKEN): (RegistrationState.REGISTERING, Action.LAPSE),
    (RegistrationState.REFRESHING, Event.ACCEPTED): (RegistrationState.REGISTERED, Action.BIND),
    (RegistrationState.REFRESHING, Event.AGAIN): (RegistrationState.REFRESHING, Action.REPEAT),
    (RegistrationState.REFRESHING, Event.NEXT): (RegistrationState.REFRESHING, Action.TRY_NEXT),
    (RegistrationState.REFRESHING, Event.EXHAUSTED): (RegistrationState.LAPSING, Action.BACK_OFF),
    (RegistrationState.REFRESHING, Event.DENIED): (RegistrationState.REFUSED, Action.REST),
    (RegistrationState.REFRESHING, Event.LAPSED): (RegistrationState.REGISTERING, Action.LAPSE),
    (RegistrationState.REFRESHING, Event.STOP): (RegistrationState.STOPPING, Action.NOTHING),
    (RegistrationState.LAPSING, Event.DUE): (RegistrationState.REFRESHING, Action.START_ROUND),
    (RegistrationState.LAPSING, Event.BROKEN): (RegistrationState.WAITING, Action.RECONNECT),
    (RegistrationState.LAPSING, Event.LAPSED): (RegistrationState.WAITING, Action.LAPSE),
    (RegistrationState.LAPSING, Event.STOP): (RegistrationState.UNREGISTERING, Action.REMOVE),
    # not bound
    (RegistrationState.WAITING, Event.DUE): (RegistrationState.REGISTERING, Action.START_ROUND),
    (RegistrationState.WAITING, Event.STOP): (RegistrationState.UNREGISTERED, Action.FORGET),
    (RegistrationState.REFUSED, Event.DUE): (RegistrationState.REGISTERING, Action.START_ROUND),
    (RegistrationState.REFUSED, Event.STOP): (RegistrationState.UNREGISTERED, Action.FORGET),
    # shutdown; an unreachable registrar drops the binding by itself
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
"""State × event → state, action. Anything else is ignored."""
