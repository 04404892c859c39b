"""The extensions of an edge as the console shows them: where their phones are, and what they do."""

from collections.abc import Iterable
from typing import Any

from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.extensions.registrar import Binding
from offhook.web.edge.edge_io import Edge
from offhook.web.records.times import iso


def extension_states(edge: Edge, epoch: float) -> list[dict[str, Any]]:
    """Returns the extensions of a process, without their passwords. `epoch` is the time since 1970
    at which the monotonic clock was 0."""
    sip = edge.sip
    if sip is None:
        return []
    return [
        {
            "number": number,
            "name": extension.name,
            **_of_phones(sip, number, epoch),
            "messages": None if edge.records.kept is None else _messages(sip, number),
        }
        for number, extension in sip.stack.settings.extensions.items()
    ]


def _of_phones(sip: SipEndpoint, number: str, epoch: float) -> dict[str, Any]:
    phones = sip.user_agent.phones.registrar.bindings(number)
    calls = [sip.calls[call] for call in sip.lines if call in sip.calls]
    own = [call for call in calls if call.trunk is not None and call.trunk.extension == number]
    shown = [_phone(phone, epoch) for phone in phones]
    return {"state": _state(own, phones), "calls": len(own), "phones": shown}


def _state(calls: Iterable[SipCall], phones: Iterable[Binding]) -> str:
    states = {call.state if call.info.direction == "outbound" else "answered" for call in calls}
    if "answered" in states:
        return "in_call"
    if states:
        return "ringing"
    return "idle" if phones else "away"


def _phone(phone: Binding, epoch: float) -> dict[str, Any]:
    host, port = phone.flow.remote
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
