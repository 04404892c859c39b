"""Recording sessions (RFC 7866): which INVITEs begin one, and whom the recorded call is between."""

from dataclasses import replace

from offhook.media.leg import CallInfo
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.messages.multipart import part_of
from offhook.telephony.sip.messages.recording_metadata import CONTENT_TYPE, Metadata, Participant
from offhook.telephony.sip.sessions.ending import shown
from offhook.telephony.sip.trunks.trunks import Trunk

MAX_LISTED = 20
"""Participants of a recorded call that its record lists; the others are left out."""


def begins_recording(request: Request, trunk: Trunk | None) -> bool:
    """Return whether an INVITE asks us to record a call: the trunk may, and the INVITE requires it
    (RFC 7866 §6.1.1) or has the metadata of a call."""
    if trunk is None or not trunk.siprec:
        return False
    content_type = request.headers.get("Content-Type") or ""
    has_metadata = part_of(content_type, request.body, CONTENT_TYPE) is not None
    return "siprec" in request.require or has_metadata


def recorded_info(info: CallInfo, metadata: Metadata | None, labels: tuple[str, ...]) -> CallInfo:
    """Return the description of a recorded call: caller is who sends the first stream, `labels`
    being those of the streams in order, and called the next participant. Without metadata those
    stay who have placed the call to us."""
    if metadata is None or not (parties := metadata.parties(labels)):
        return replace(info, direction="recorded")
    caller, called = parties[0], parties[1] if len(parties) > 1 else Participant("")
    known = {
        "participants": listed(metadata, labels),
        "sessions": [shown(one) for one in metadata.sessions[:MAX_LISTED]],
    }
    return replace(
        info,
        direction="recorded",
        caller=shown(caller.number),
        caller_name=shown(caller.name),
        called=shown(called.number),
        variables={**info.variables, "siprec": known},
    )


def listed(metadata: Metadata, labels: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the participants for a record, those of the streams first."""
    return [
        {"number": shown(one.number), "name": shown(one.name)}
        for one in metadata.parties(labels)[:MAX_LISTED]
    ]
