"""The REFERs of far ends: a call goes on with the same leg at another far end (RFC 3515 §2.4)."""

import asyncio
from time import monotonic

from offhook.telephony.call_progress_io import DialError
from offhook.telephony.sip.call_io import Followed, SipCall
from offhook.telephony.sip.invites_io import Invites
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.server_lookup_io import ServerLookup
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import ReferReceived
from offhook.telephony.sip.stack_io import SipStack
from offhook.telephony.sip.trunks.trunks import Trunk


class ReferFollower:
    """Follows the REFERs that an endpoint's calls receive."""

    def __init__(self, stack: SipStack, lookup: ServerLookup, invites: Invites) -> None:
        self._stack = stack
        self._lookup = lookup
        self._invites = invites

    def receive(self, call: SipCall, refer: ReferReceived) -> None:
        """Follow a REFER, or refuse it."""
        session = call.session
        assert session is not None
        fits = isinstance(call.leg, SipLeg) and _may_follow(call.trunk, refer.target)
        if fits and not call.transferring:
            call.followed, call.early = Followed(session), None
            session.refers.accept(monotonic())
            call.tasks.spawn(self._follow(call, call.followed, refer), f"sip {call.call_id}")
        else:
            session.refers.refuse(603, monotonic())
        self._stack.session_changed(session)

    async def _follow(self, call: SipCall, followed: Followed, refer: ReferReceived) -> None:
        """Call the new far end. Until that answers the leg stays with the old one, which may hang
        up already."""
        headers = [("Referred-By", refer.referred_by)] if refer.referred_by else []
        if refer.replaces:
            headers.append(("Replaces", refer.replaces))
        try:
            flows = await self._lookup.flows_to(refer.target, call.trunk)
            await self._invites.place(call, refer.target, flows[0], headers)
        except DialError as error:
            # The old session is the call's again, unless its far end has hung up.
            call.session, call.ended, call.followed = followed.session, None, None
            self._notify(followed.session, error.status or 503)
            if followed.end is not None:
                call.handle_ended(followed.end)
        except asyncio.CancelledError:  # our side hung up
            self._notify(followed.session, 487)
            raise
        else:
            call.followed = None
            followed.session.refers.notify(200, "OK", monotonic())
            call.hang_up_session(followed.session, "transferred")
        call.early = None

    def _notify(self, session: Session, status: int) -> None:
        session.refers.notify(status, "", monotonic())
        self._stack.session_changed(session)


def _may_follow(trunk: Trunk | None, target: Uri) -> bool:
    """Return whether a call may follow to a target: only to numbers of its own trunk, and only if
    configured, as nobody may place calls at our expense."""
    if trunk is None or not trunk.follow or not trunk.server:
        return False
    return trunk.is_host(target.host)
