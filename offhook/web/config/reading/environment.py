"""Reads the configuration's environment variables: OFFHOOK_SECTION_KEY=value."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from offhook.web.config.reading.other_names import here

PREFIX = "OFFHOOK_"
OTHERS = frozenset(
    {
        *("OFFHOOK_COMPILED", "OFFHOOK_WORKER_API_KEY", "OFFHOOK_RAY", "OFFHOOK_RAY_OUTAGE_S"),
        *("OFFHOOK_SPEECH", "OFFHOOK_ASTERISK", "OFFHOOK_MEDIAMTX_PAGES", "OFFHOOK_TEST"),
        *("OFFHOOK_WHISPER", "OFFHOOK_WHISPER_PYTHON"),
    }
)
"""Variables that are no part of the configuration: of other commands, of benchmarks and tests."""
OF_CLIENTS = frozenset({"OFFHOOK_URL", "OFFHOOK_KEY"})
"""Variables of programs that use a server, as those in `examples`."""

_KUBERNETES = re.compile(
    r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)"
)
"""Variables that Kubernetes sets in every pod for services whose names begin with offhook."""
_KUBERNETES_PORT = re.compile(r"(tcp|udp|sctp)://.*")


def overrides(
    environment: Mapping[str, str], sections: Mapping[str, Iterable[str]]
) -> tuple[dict[tuple[str, str], tuple[str, Any]], list[str]]:
    """Returns the variable and value for each section and key, and what is wrong, in words.

    `sections` has the keys of each section. Values that begin with [ or { are read as JSON."""
    values: dict[tuple[str, str], tuple[str, Any]] = {}
    faults: list[str] = []
    for name, text in environment.items():
        if not name.startswith(PREFIX) or name in OTHERS | OF_CLIENTS:
            continue
        rest = name.removeprefix(PREFIX)
        section, _, key = rest.lower().partition("_")
        is_ours = section in sections and key in sections[section]
        is_port = rest.endswith("PORT") and _KUBERNETES_PORT.fullmatch(text)
        if is_port or (_KUBERNETES.fullmatch(rest) and not is_ours):
            continue
        if section not in sections or not key:
            faults.append(f"{name}: {_unknown(name, section, sections)}")
            continue
        try:
            values[section, key] = name, json.loads(text) if text.startswith(("[", "{")) else text
        except ValueError as error:
            faults.append(f'{name}: is not JSON, as ["a", "b"] or {{"a": 1}}: {error}')
    return values, faults


def _unknown(name: str, section: str, sections: Mapping[str, Iterable[str]]) -> str:
    names = [f"{PREFIX}{s}_{key}".upper() for s, keys in sections.items() for key in keys]
    rest = name.removeprefix(PREFIX)
    other = here(rest.lower().removeprefix(f"{section}_"), sections.get(section, ()))
    near = [f"{PREFIX}{section}_{key}".upper() for key in other]
    near += [one for one in names if one.endswith(f"_{rest}")]
    near += difflib.get_close_matches(name, names, 1, 0.75)
    meant = f"; did you mean {near[0]}?" if near else f": {PREFIX}SERVER_PORT is port of [server]"
    if section in sections:
        return f"names no key of [{section}]{meant}"
    return f"there is no section [{section}]{meant}"
