"""Fields of a session that holders of a client secret cannot change: `[realtime] frozen`.

A change is judged by its result. The session as it is and as the event would make it are compared
at each frozen path, so that it does not matter by which event, at which level or by which null a
client would change a field.
"""

from collections.abc import Collection, Iterator
from difflib import SequenceMatcher
from functools import cache, partial
from typing import Any, TypeVar, get_args, get_origin

from offhook.web.realtime.protocol.conversation_session import ConversationSession
from offhook.web.realtime.protocol.items import InputItem, Item, SystemMessage
from offhook.web.realtime.protocol.session_object import EventError, Object, Session

CODE = "cannot_update_field"
"""Code of the error; of OpenAI's, `cannot_update_voice` is nearest."""
S = TypeVar("S", ConversationSession, Session)


class FrozenFields:
    """Fields that keep their values, by dotted paths; a path means all that is below it."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = tuple(sorted(names))

    def touch(self, path: str) -> bool:
        """Return whether a field at, above or below the path is frozen."""
        pairs = [(f"{name}.", f"{path}.") for name in self._names]
        return any(a.startswith(b) or b.startswith(a) for a, b in pairs)

    def kept(self, old: S, new: S, outer: str) -> S:
        """Return the session as a change makes it, which `outer` names in errors. Raises EventError
        for one that changes a frozen field."""
        if isinstance(old, ConversationSession) and isinstance(new, ConversationSession):
            shown = tuple(_without_secrets(tool) for tool in old.tools)
            if self.touch("tools") and new.tools == shown:  # sent back as they were received
                new = new.model_copy(update={"tools": old.tools})
        for name in self._names:
            if _value(old, name) != _value(new, name):
                words = f"{outer}.{name} is frozen: with a client secret it cannot be changed"
                raise EventError(words, CODE, f"{outer}.{name}")
        return new

    def check_item(self, item: Item | InputItem, param: str) -> None:
        """Raises EventError for a message of the system where the instructions are frozen: models
        follow the one as they follow the other."""
        if isinstance(item, SystemMessage) and self.touch("instructions"):
            words = (
                f"{param}.role is system, and the instructions are frozen: with a client secret no "
                "message of the system can be sent"
            )
            raise EventError(words, CODE, f"{param}.role")


NONE_FROZEN = FrozenFields()


def _without_secrets(tool: Object) -> Object:
    secrets = {"authorization", "headers"} & type(tool).model_fields.keys()
    return tool.model_copy(update=dict.fromkeys(secrets))


def _value(session: Object, path: str) -> Any:
    value: Any = session
    for name in path.split("."):
        value = getattr(value, name, None) if isinstance(value, Object) else None
    return value


# --- the setting ---


def fault_of_frozen(names: Collection[str]) -> str:
    """Returns what is wrong with the setting: a path that no session has; empty if nothing is."""
    for name in sorted(names):
        if name not in paths():
            nearest = _leaf_above(name) or max(sorted(paths()), key=partial(_likeness, name))
            return f"realtime.frozen: no session has a field {name} (did you mean {nearest}?)"
    return ""


@cache
def paths() -> frozenset[str]:
    """Returns the paths of all fields of conversations and of transcription sessions."""
    return frozenset((*_paths(ConversationSession), *_paths(Session)))


def _paths(model: type[Object], above: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{above}{name}"
        for inner in _objects(field.annotation):
            yield from _paths(inner, f"{above}{name}.")


def _objects(annotation: Any) -> Iterator[type[Object]]:
    """Yield the models that a value may be of; items of arrays have no path."""
    if isinstance(annotation, type) and issubclass(annotation, Object):
        yield annotation
    elif get_origin(annotation) not in (tuple, dict):
        for part in get_args(annotation):
            yield from _objects(part)


def _leaf_above(name: str) -> str:
    """Return the field that the path goes on below, where there is nothing below; else empty."""
    above = name
    while above := above.rpartition(".")[0]:
        if above in paths():
            return "" if any(path.startswith(f"{above}.") for path in paths()) else above
    return ""


def _likeness(name: str, path: str) -> float:
    last = SequenceMatcher(None, name.rpartition(".")[2], path.rpartition(".")[2]).ratio()
    return last + SequenceMatcher(None, name, path).ratio()
