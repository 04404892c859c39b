"""Who reaches the messages of a mailbox by the number for them."""

from dataclasses import replace

import pytest

from offhook.media.leg import CallInfo
from offhook.telephony.sip.dial_plan import Destination, destination
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.trunks.extension import Extension
from offhook.telephony.sip.trunks.trunks import Route, SipSettings, Trunk

ANN, BOB = Extension(password="a", voicemail="mailbox"), Extension(password="b")
PROVIDER = Trunk("provider", server="sip.provider.example")
TEAM = SipSettings(
    extensions={"101": ANN, "102": BOB},
    trunks=(PROVIDER,),
    routes=(Route(agent="desk"),),  # for every number
    messages="*97",
)


def goes(caller: Trunk | None, settings: SipSettings = TEAM, called: str = "*97") -> Destination:
    trunk = caller.name if caller is not None else ""
    return destination(settings, CallInfo("sip", caller="101", called=called, trunk=trunk), caller)


def test_an_extension_reaches_its_own_voicemail() -> None:
    assert goes(TEAM.phones["101"]) == Destination("mailbox")


def test_whoever_has_no_voicemail_or_calls_from_outside_reaches_nobody() -> None:
    for caller in (TEAM.phones["102"], PROVIDER, None):
        assert goes(caller) == Destination(status=404)
        assert goes(caller, replace(TEAM, routes=())) == Destination(status=404)


def test_a_phone_that_may_call_outside_does_not_dial_the_number_there() -> None:
    team = {"102": replace(BOB, outside="provider")}
    outside = replace(TEAM, extensions=team, routes=())
    assert goes(outside.phones["102"], outside) == Destination(status=404)
    assert goes(outside.phones["102"], outside, "*98").outside is PROVIDER


def test_without_a_number_nothing_is_different() -> None:
    none = replace(TEAM, messages="")
    for caller in (none.phones["101"], PROVIDER):
        assert goes(caller, none) == Destination("desk")
        assert goes(caller, none, "") == Destination("desk")


@pytest.mark.parametrize(("number", "fault"), [("messages", "digits"), ("101", "is an extension")])
def test_a_number_that_cannot_be_dialled_for_them_is_refused(number: str, fault: str) -> None:
    with pytest.raises(SipError, match=fault):
        replace(TEAM, messages=number)
