"""All attacks there are: the public coroutines of this package's modules that take `base` and
`seconds`, whoever wrote them."""

import importlib
import inspect
import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tests.attack

Attack = Callable[..., Awaitable[str]]
CALLS = "calls"
NEEDS: Mapping[str, str] = {
    "webrtc": CALLS,
    "endings": CALLS,
    "pages": CALLS,
    "carriers": CALLS,
    "phones": CALLS,
    "known.realtime_events": CALLS,
    "known.stun_flood": CALLS,
}
"""What a server must offer beside the arguments of an attack, by the attack or its module."""
RENAMED: Mapping[str, Mapping[str, str]] = {
    "silence.silent_wyoming_clients": {"port": "wyoming_port"},
}
"""Arguments that are another thing to an attack than their name says elsewhere."""
OWN = ("most", "seed", "opened")
"""Arguments for tests of a room, which keep their defaults here."""


@dataclass(frozen=True)
class Found:
    name: str
    """MODULE.FUNCTION"""
    run: Attack

    def arguments(self, offers: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the attack is called with besides base and seconds, of what a server offers; None if
        it lacks something."""
        module = self.name.partition(".")[0]
        needed = {NEEDS[key] for key in (module, self.name) if key in NEEDS}
        if not needed <= offers.keys():
            return None
        found = {}
        for parameter in list(inspect.signature(self.run).parameters.values())[2:]:
            name = RENAMED.get(self.name, {}).get(parameter.name, parameter.name)
            if name in offers and parameter.name not in OWN:
                found[parameter.name] = offers[name]
            elif parameter.default is parameter.empty:
                return None
        return found


def all_attacks() -> dict[str, Found]:
    """By their names, those of `known` first."""
    names = [module.name for module in pkgutil.iter_modules(tests.attack.__path__)]
    names.sort(key=lambda name: (name != "known", name))
    found = {}
    for name in names:
        if name.startswith(("test_", "_")):
            continue
        module = importlib.import_module(f"tests.attack.{name}")
        for function, run in vars(module).items():
            if is_attack(run) and run.__module__ == module.__name__ and function[0] != "_":
                found[f"{name}.{function}"] = Found(f"{name}.{function}", run)
    return found


def is_attack(value: object) -> bool:
    if not inspect.iscoroutinefunction(value):
        return False
    return list(inspect.signature(value).parameters)[:2] == ["base", "seconds"]
