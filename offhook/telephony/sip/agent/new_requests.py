"""Requests outside a dialog: whether they are served at all, and which call an INVITE replaces."""

from collections.abc import Callable

from offhook.telephony.sip.admission.access_policy import HeaderLines, Refusal
from offhook.telephony.sip.agent.session_routes import SessionRoutes
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request, sdp_of
from offhook.telephony.sip.messages.recording_metadata import CONTENT_TYPE
from offhook.telephony.sip.sessions.dialog_requests import ALLOWED, KNOWN
from offhook.telephony.sip.sessions.refer import Replaces
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_route import SessionRoute
from offhook.telephony.sip.sessions.session_table import OVER, SessionState

EXTENSIONS = ("100rel", "timer", "replaces")


def new_request_error(request: Request, *, recorder: bool = False) -> Refusal | None:
    """Check a request outside a dialog, in the order of RFC 3261 §8.2. Returns the rejection, or
    None. `recorder`: we may record calls of its sender."""
    if request.method not in ALLOWED:
        allowed = [("Allow", ", ".join(ALLOWED))]
        return Refusal(405 if request.method in KNOWN else 501, allowed)
    if request.uri.scheme not in ("sip", "sips", "tel"):
        return Refusal(416)
    known = extensions(recorder=recorder)
    unknown = [tag for tag in request.require if tag not in known]
    if unknown:
        return Refusal(420, [("Unsupported", ", ".join(unknown))])
    encoding = (request.headers.get("Content-Encoding") or "identity").strip().lower()
    if encoding != "identity":
        return Refusal(415, [("Accept-Encoding", "identity")])
    if request.method == "INVITE" and request.body and sdp_of(request) is None:
        return Refusal(415, [("Accept", ", ".join(_accepted_types(recorder=recorder)))])
    if request.method == "INVITE" and not _accepts_sdp(request):
        return Refusal(406)
    return None


def extensions(*, recorder: bool) -> tuple[str, ...]:
    """Return the option tags that may be required."""
    return (*EXTENSIONS, "siprec") if recorder else EXTENSIONS


def _accepted_types(*, recorder: bool) -> list[str]:
    sdp = "application/sdp"
    return [sdp, CONTENT_TYPE, "multipart/mixed"] if recorder else [sdp]


def capabilities(user_agent: str, *, recorder: bool = False) -> HeaderLines:
    """Return the headers that describe our capabilities (RFC 3261 §11.2)."""
    return [
        ("Allow", ", ".join(ALLOWED)),
        ("Accept", ", ".join(_accepted_types(recorder=recorder))),
        ("Supported", ", ".join(extensions(recorder=recorder))),
        ("User-Agent", user_agent),
    ]


def replaced_session(
    request: Request,
    flow: Flow,
    routes: SessionRoutes,
    may_replace: Callable[[SessionRoute, Request, Flow], bool],
) -> Session | int:
    """Return the session that Replaces identifies (RFC 3891 §3), or the status that rejects it.
    Knowing a call's tags proves nothing (§5): `may_replace` returns whether the sender may."""
    try:
        [value] = request.headers.all("Replaces")
        named = Replaces.parse(value)
    except ValueError:
        return 400
    route = routes.of(named.call_id, named.to_tag)
    if route is None or route.of.dialog is None or not may_replace(route, request, flow):
        return 481
    if route.of.dialog.id.remote_tag != named.from_tag:
        return 481
    if route.of.state in OVER:
        return 603
    if route.of.state not in (SessionState.ANSWERED, SessionState.ESTABLISHED):
        return 481
    return 486 if named.early_only else route.of


def _accepts_sdp(request: Request) -> bool:
    """Whether the sender accepts SDP (RFC 3261 §20.1); without an Accept header it does."""
    accepted = request.headers.all("Accept")
    kinds = {value.partition(";")[0].strip().lower() for value in accepted}
    return not accepted or bool(kinds & {"application/sdp", "application/*", "*/*"})
