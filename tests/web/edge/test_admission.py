"""Who is admitted: calls that have ended hold no line while their conversations end."""

import pytest

from offhook.media.clock_io import PacketClock
from offhook.media.leg import Leg
from offhook.signaling.peer_io import PeerLeg
from offhook.web.edge.admission_io import FEW_CALLS, CallAdmission
from offhook.web.edge.refusals import Busy
from offhook.web.http.shares import Shares


def test_ended_calls_hold_no_line_until_there_are_as_many_as_lines() -> None:
    refused: list[str] = []
    room = CallAdmission(PacketClock(), refused.append, 0.0, lambda: 0)
    legs: list[Leg] = [PeerLeg(f"leg {number}") for number in range(2)]
    with pytest.raises(Busy, match="full"):
        room.check(legs, (), 2, None, Shares())
    legs[0].close("the caller hung up")
    assert room.check(legs, (), 2, None, Shares()) is None
    ended = [PeerLeg(f"ended {number}") for number in range(FEW_CALLS)]
    for leg in ended:
        leg.close("the caller hung up")
    with pytest.raises(Busy):
        room.check([*legs, *ended], (), 2, None, Shares())
    assert refused == ["full", "busy"]
