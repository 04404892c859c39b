"""The extensions of an edge as the console shows them: where their phones are, and what they do."""

from collections.abc import Iterable
from time import monotonic, time
from typing import Any

from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.extensions.registrar import Binding
from offhook.web.edge.edge_io import Edge
from offhook.web.records.times import iso


def extension_states(edge: Edge) -> list[dict[str, Any]]:
    """Returns the extensions of a process, without their passwords."""
    sip = edge.sip
    if sip is None:
        return []
    return [
        {
            "number": number,
            "name": extension.name,
            **_of_phones(sip, number),
            "messages": None if edge.records.kept is None else _messages(sip, number),
        }
        for number, extension in sip.stack.settings.extensions.items()
    ]


def _of_phones(sip: SipEndpoint, number: str) -> dict[str, Any]:
    phones = sip.user_agent.phones.registrar.bindings(number)
    calls = [sip.calls[call] for call in sip.lines if call in sip.calls]
    own = [call for call in calls if call.trunk is not None and call.trunk.extension == number]
    return {"state": _state(own, phones), "calls": len(own), "phones": list(map(_phone, phones))}


def _state(calls: Iterable[SipCall], phones: Iterable[Binding]) -> str:
    states = {call.state if call.info.direction == "outbound" else "answered" for call in calls}
    if "answered" in states:
        return "in_call"
    if states:
        return "ringing"
    return "idle" if phones else "away"


def _phone(phone: Binding) -> dict[str, Any]:
    host, port = phone.flow.remote
    epoch = time() - monotonic()
    return {
        "user_agent": phone.user_agent,
        "address": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "transport": phone.flow.transport.lower(),
        "since": iso(round(epoch + phone.since)),
        "expires": iso(round(epoch + phone.expires_at)),
    }


def _messages(sip: SipEndpoint, number: str) -> dict[str, int]:
    new, heard = sip.user_agent.phones.message_waiting.counts(number)
    return {"new": new, "heard": heard}
