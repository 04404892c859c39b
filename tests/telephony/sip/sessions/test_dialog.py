import pytest

from offhook.telephony.sip.messages.headers import Headers
from offhook.telephony.sip.messages.message import Request, Response, respond
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog import MAX_ROUTES, Dialog
from tests.telephony.sip.session_peers import US, Header, made


def invite(*headers: Header) -> Request:
    return made("INVITE", [("Contact", "<sip:them@198.51.100.7:5070>"), *headers], cseq=7)


def called(*headers: Header) -> Dialog:
    return Dialog.from_request(invite(*headers), "us", US)


def calling(*headers: Header) -> tuple[Dialog, Request]:
    request = made("INVITE", [], from_tag="us", call_id="ours", cseq=3)
    response = respond(request, 200, to_tag="them", headers=headers)
    return Dialog.from_response(request, response, US), request


def test_the_called_end_takes_tags_target_and_number_from_the_invite() -> None:
    dialog = called()
    assert dialog.id == ("call", "us", "them")
    assert str(dialog.remote_target) == "sip:them@198.51.100.7:5070"
    request = dialog.request("BYE")
    assert (request.from_.tag, request.to.tag, request.call_id) == ("us", "them", "call")
    assert str(request.cseq) == "1 BYE"
    assert str(dialog.request("INFO").cseq) == "2 INFO"


def test_the_calling_end_counts_on_from_its_invite() -> None:
    dialog, _ = calling(("Contact", "<sip:them@198.51.100.7>"))
    assert dialog.id == ("ours", "us", "them")
    assert str(dialog.request("BYE").cseq) == "4 BYE"


def test_record_route_is_followed_from_the_called_end_in_its_order() -> None:
    dialog = called(("Record-Route", "<sip:p2;lr>, <sip:p1;lr>"))
    request = dialog.request("BYE")
    assert [str(route.uri) for route in request.routes] == ["sip:p2;lr", "sip:p1;lr"]
    assert str(request.uri) == "sip:them@198.51.100.7:5070"
    assert str(dialog.next_hop) == "sip:p2;lr"


def test_record_route_is_followed_from_the_calling_end_in_reverse() -> None:
    dialog, _ = calling(
        ("Contact", "<sip:them@198.51.100.7>"), ("Record-Route", "<sip:p2;lr>, <sip:p1;lr>")
    )
    request = dialog.request("BYE")
    assert [str(route.uri) for route in request.routes] == ["sip:p1;lr", "sip:p2;lr"]
    assert str(dialog.next_hop) == "sip:p1;lr"


def test_a_strict_router_stands_in_the_request_uri_and_the_far_end_last_in_the_route() -> None:
    dialog = called(("Record-Route", "<sip:strict;method=BYE?Subject=x>, <sip:p1;lr>"))
    request = dialog.request("BYE")
    assert str(request.uri) == "sip:strict"
    assert [str(r.uri) for r in request.routes] == ["sip:p1;lr", "sip:them@198.51.100.7:5070"]
    assert dialog.next_hop.host == "strict"


def test_the_2xx_decides_the_route_and_target_whatever_the_18x_said() -> None:
    dialog, request = calling(("Contact", "<sip:early@h>"), ("Record-Route", "<sip:p9;lr>"))
    dialog.confirm(respond(request, 200, to_tag="them", headers=[("Contact", "<sip:late@h>")]))
    assert dialog.route_set == ()
    assert str(dialog.next_hop) == "sip:late@h"


def test_a_new_contact_is_the_new_target_and_none_leaves_the_old() -> None:
    dialog = called()
    dialog.refresh_target(made("INVITE", [("Contact", "<sip:moved@203.0.113.9>")]))
    assert str(dialog.request("INFO").uri) == "sip:moved@203.0.113.9"
    dialog.refresh_target(made("INVITE", []))
    assert str(dialog.request("INFO").uri) == "sip:moved@203.0.113.9"


@pytest.mark.parametrize("contact", ["*", "<tel:+15551234>", "<urn:service:sos>"])
def test_a_contact_that_nothing_can_be_sent_to_is_passed_over(contact: str) -> None:
    request = made("INVITE", [("Contact", contact)])
    assert Dialog.from_request(request, "us", US).remote_target == Uri.parse("sip:them@192.0.2.2")


@pytest.mark.parametrize(
    ("via", "target"),
    [
        ("SIP/2.0/UDP gw.example:5070;branch=z9hG4bK1", "sip:+1555@gw.example:5070"),
        ("SIP/2.0/UDP 10.0.0.1;rport=4071;received=198.51.100.9", "sip:+1555@198.51.100.9:4071"),
        ("SIP/2.0/TLS [2001:db8::1];received=2001:db8::9", "sip:+1555@[2001:db8::9];transport=tls"),
        ('SIP/2.0/UDP gw.example;rport=0;received="a b"', "sip:+1555@gw.example"),
        ('SIP/2.0/UDP gw.example;received="a\tSIP/2.0"', "sip:+1555@gw.example"),
    ],
)
def test_a_gateway_of_numbers_is_answered_where_it_sent_from(via: str, target: str) -> None:
    request = made("INVITE", [("Contact", "<tel:+1-555>")])
    request.headers.set("From", "<tel:+1-555>;tag=them")
    request.headers.set("Via", "SIP/2.0/UDP 203.0.113.1;branch=z9hG4bKproxy", via)
    assert str(Dialog.from_request(request, "us", US).remote_target) == target


def test_headers_and_a_method_in_a_contact_stay_out_of_the_request_uri() -> None:
    request = made("INVITE", [("Contact", "<sip:them@h;method=REFER;ob?Replaces=x>")])
    dialog = Dialog.from_request(request, "us", US)
    assert str(dialog.request("BYE").uri) == "sip:them@h;ob"


def test_requests_out_of_order_are_told_from_those_in_order() -> None:
    dialog = called()
    assert dialog.accept(made("INFO", [], cseq=9))
    assert not dialog.accept(made("INFO", [], cseq=8))
    assert not dialog.accept(made("INFO", [], cseq=9))
    assert dialog.accept(made("INFO", [], cseq=10))


def test_a_bye_is_heard_whatever_its_number() -> None:
    dialog = called()
    assert dialog.accept(made("INFO", [], cseq=9))
    assert dialog.accept(made("BYE", [], cseq=2))


def test_the_ack_has_the_number_and_the_credentials_of_its_invite() -> None:
    dialog, request = calling(("Contact", "<sip:them@h>"))
    request.headers.add("Proxy-Authorization", 'Digest username="u"')
    dialog.request("INFO")
    ack = dialog.ack(request, sdp="v=0\r\n")
    assert str(ack.cseq) == "3 ACK"
    assert ack.headers.get("Proxy-Authorization") == 'Digest username="u"'
    assert (ack.content_type, ack.body) == ("application/sdp", b"v=0\r\n")


def test_a_route_set_longer_than_its_limit_is_cut() -> None:
    routes = ", ".join(f"<sip:p{number};lr>" for number in range(MAX_ROUTES + 20))
    dialog = called(("Record-Route", routes))
    assert len(dialog.request("BYE").routes) == MAX_ROUTES


def test_what_replaces_the_call_is_named_as_the_far_end_sees_it() -> None:
    assert called().replaces == "call;to-tag=them;from-tag=us"


def test_a_far_end_without_tags_gets_none() -> None:
    request = invite()
    request.headers.set("From", "<sip:old@192.0.2.2>")
    assert "tag" not in str(Dialog.from_request(request, "us", US).request("BYE").to)


def test_only_requests_that_may_move_the_target_carry_a_contact() -> None:
    dialog = called()
    carrying = [m for m in ("INVITE", "UPDATE", "REFER", "NOTIFY") if dialog.request(m).contacts]
    assert carrying == ["INVITE", "UPDATE", "REFER", "NOTIFY"]
    assert not dialog.request("BYE").contacts


def test_a_response_is_a_message_too() -> None:
    dialog = called()
    dialog.refresh_target(
        Response(200, "OK", Headers([("Contact", "<sip:a@h>"), ("To", "<sip:x@h>")]))
    )
    assert str(dialog.remote_target) == "sip:a@h"
