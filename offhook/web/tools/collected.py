"""What is known of an agent's details in one call.

Each detail by itself:

    state                     the model gives          -> state
    any                       what is none of its kind -> as before, and the model is told why
    any, not repeated         a value                  -> noted
    unknown, noted (another)  a value                  -> asked: the model repeats it to the caller
    asked                     another value            -> asked
    asked, caller has spoken  the same value           -> noted
    asked, caller has not     the same value           -> asked
    noted                     the same value           -> noted
"""

from collections.abc import Iterator, Mapping
from typing import Any

from offhook.media.leg import Collected
from offhook.pipeline.speech.redact import MASK
from offhook.web.config.collect import Detail, Unreadable, Value

PAUSE = "pause_recording"
"""Name of the tool with which a model pauses the recording."""
ASK = "not noted yet: repeat it to the caller, and once they have agreed call this function again"


class Details:
    """The details of one conversation."""

    def __init__(self, details: Mapping[str, Detail], known: Collected) -> None:
        """`known` is what has been noted in the call so far; it is added to."""
        self._details = details
        self._known = known
        self._secrets: Collected = {}
        """Values of secret details, of which `known` has masks."""
        self._asked: dict[str, tuple[Value, int]] = {}
        """Values that the caller is asked about, and the caller's turns until then."""

    def missing(self) -> dict[str, str]:
        """Returns what is required and not noted, with how to ask for it."""
        return {
            name: detail.ask
            for name, detail in self._details.items()
            if detail.required and name not in self._known
        }

    def open_secrets(self) -> bool:
        """Returns whether a secret detail is not noted yet."""
        return any(one.secret and name not in self._known for name, one in self._details.items())

    def give(self, values: Mapping[str, Any], turns: int) -> tuple[Collected, dict[str, Any]]:
        """Returns what is newly noted of these values, and what the model is told. `turns` is how
        often the caller has spoken."""
        noted: Collected = {}
        ask, wrong = dict[str, str](), dict[str, str]()
        for name, given in values.items():
            detail = self._details.get(name)
            if detail is None:
                wrong[name] = f"there is no such detail; there are {', '.join(self._details)}"
                continue
            if given is None:
                continue
            try:
                value = detail.read(given)
            except Unreadable as error:
                wrong[name] = str(error)
                continue
            if self._secrets.get(name, self._known.get(name)) == value:
                continue
            if detail.is_repeated and not self._agreed(name, value, turns):
                ask[name] = f"{value}: {ASK}"
                continue
            self._asked.pop(name, None)
            self._known[name] = noted[name] = value
            if detail.secret:
                self._known[name], self._secrets[name] = MASK, value
        told = {"noted": dict(noted), "repeat": ask, "wrong": wrong, "missing": self.missing()}
        return noted, {name: part for name, part in told.items() if part} or {"noted": {}}

    def _agreed(self, name: str, value: Value, turns: int) -> bool:
        asked = self._asked.get(name)
        if asked is not None and asked[0] == value:
            return turns > asked[1]
        self._asked[name] = value, turns
        return False


def instructions(details: Mapping[str, Detail], known: Mapping[str, Value], function: str) -> str:
    """Returns what the model is told to find out."""
    return "\n".join(_lines(details, known, function))


def _lines(
    details: Mapping[str, Detail], known: Mapping[str, Value], function: str
) -> Iterator[str]:
    yield (
        "Find out these details in the conversation, one at a time, and do not ask for what the "
        f"caller has said already. Call {function} with each as soon as you know it."
    )
    for name, detail in details.items():
        if name in known:
            yield f"- {name}: known already, {known[name]}"
        else:
            need = " (required)" if detail.required else ""
            yield f"- {name}{need}" + (f": {detail.ask}" if detail.ask else "")
            if detail.secret:
                yield f"  {name} is secret: call {PAUSE} before you ask for it"
