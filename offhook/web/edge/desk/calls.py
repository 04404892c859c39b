"""Which calls a desk may see: those that ring at its extension, or that the extension is in."""

from dataclasses import dataclass
from typing import Any

from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.trunks.extension import trunk_name
from offhook.web.edge.calls_io import UnknownCall
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.transfers.people_io import Person


@dataclass(frozen=True)
class DeskCall:
    """One call of an extension, and what is known of whoever is at its other end."""

    call_id: str
    """Of the call to the extension, or of the one that it has made."""
    caller_call: str
    """Of the call whose caller it is; `call_id` if that is the same."""
    number: str
    tenant: str = ""
    """Whose call it is."""
    name: str = ""
    state: str = "ended"
    placed: bool = False
    """Whether the extension has made it."""
    others: tuple[str, ...] = ()
    """Numbers of those who are in it besides, once others were added."""
    may_add: bool = False
    """Whether it is a call between telephones, to which others can be added."""
    person: Person | None = None
    """Who is to decide whether the caller is connected; None: nobody has to."""

    async def shown(self) -> dict[str, Any]:
        """Returns the call as its desk sees it, without what was said in it."""
        shown: dict[str, Any] = {"call_id": self.call_id, "number": self.number, "name": self.name}
        shown |= {"state": self.state, "others": self.others, "may_add": self.may_add}
        if self.person is None:
            return shown
        about = self.person.briefing
        return {
            **shown,
            "target": about.target,
            "since": about.since,
            "briefing": await about.text(0),
            "accepted": self.person.has_agreed,
        }


def calls_of(edge: Edge, extension: str) -> list[DeskCall]:
    """Returns the calls in progress of an extension."""
    asked = edge.queues.transfers.people.at(extension)
    if edge.sip is None:
        return []
    return [
        _desk_call(edge.sip, call, asked.get(call.call_id))
        for call in edge.sip.calls.values()
        if call.trunk is not None and call.trunk.extension == extension and call.state != "ended"
    ]


def find(edge: Edge, extension: str, call_id: str) -> DeskCall:
    """Returns a call of an extension, also one that was answered there and has ended lately. Raises
    UnknownCall for any other one, whether it is there or not."""
    for call in calls_of(edge, extension):
        if call.call_id == call_id:
            return call
    ended = edge.records.ended.get(call_id)
    record = None if ended is None else ended.record
    if ended is None or record is None or record.trunk != trunk_name(extension):
        raise UnknownCall(call_id)
    if record.answered is None:
        raise UnknownCall(call_id)
    number = record.caller if record.direction == "outbound" else record.called
    placed = record.direction == "inbound"
    return DeskCall(call_id, ended.caller_call, number, record.tenant, placed=placed)


def _desk_call(sip: SipEndpoint, call: SipCall, person: Person | None) -> DeskCall:
    info, pair = call.info, sip.pairs.of(call)
    rings_here = info.direction == "outbound"
    together = pair.members if pair is not None and not pair.is_two else []
    return DeskCall(
        call.call_id,
        sip.caller_of(call.call_id),
        info.caller if rings_here else info.called,
        info.tenant,
        info.caller_name if rings_here else "",
        call.state,
        not rings_here,
        tuple(_far_end(one) for one in together if one is not call),
        pair is not None and pair.leaving is None,
        person,
    )


def _far_end(call: SipCall) -> str:
    return call.info.called if call.info.direction == "outbound" else call.info.caller
