"""Phones that are told what waits in their mailboxes."""

import pytest

from offhook.telephony.sip.messages.message import Request, Response, parse_message, respond
from tests.telephony.sip.extensions.test_registrar import HOME, OFFICE, START, Phone, server

SUMMARY = ("Event", "message-summary")


class Desk(Phone):
    """A phone that answers NOTIFYs."""

    def __init__(self, *about, **more):
        super().__init__(*about, **more)
        self.notified: list[Request] = []
        self.answers = 200

    def read(self, now=START):
        """What came: responses; NOTIFYs are kept and answered."""
        responses = []
        for data, flow in self.ua.messages_to_send():
            message = parse_message(data)
            if isinstance(message, Response):
                responses += [message] if message.status > 100 else []
            elif message.method == "NOTIFY" and flow == self.flow:
                self.notified.append(message)
                answer = respond(message, self.answers, to_tag="phone")
                self.ua.receive(answer.serialize(), flow, now)
        return responses

    def subscribe(self, *headers, now=START, **fields):
        return self.ask(self.request("SUBSCRIBE", *(headers or (SUMMARY,)), **fields), now)

    def shown(self):
        """The numbers of messages, as it was told."""
        found = []
        for notify in self.notified:
            lines = dict(line.split(": ", 1) for line in notify.body.decode().strip().split("\r\n"))
            assert lines["Messages-Waiting"] in ("yes", "no")
            found.append(lines["Voice-Message"])
        self.notified.clear()
        return found


def test_a_phone_that_subscribes_is_told_at_once_and_of_each_change():
    ua = server()
    ua.phones.show({"101": (2, 1)}, START)
    phone = Desk(ua)
    answer = phone.subscribe()
    assert answer.status == 200
    first = phone.notified[0]
    assert first.from_.tag == answer.to.tag
    assert first.to.tag == "phone"
    assert first.call_id == answer.call_id
    assert first.headers.get("Subscription-State").startswith("active;expires=")
    assert phone.shown() == ["2/1"]
    ua.phones.show({"101": (3, 1)}, START + 1)
    phone.read()
    ua.phones.show({"101": (3, 1), "102": (9, 9)}, START + 2)
    phone.read()
    ua.phones.show({}, START + 3)
    phone.read()
    assert phone.shown() == ["3/1", "0/0"]


def test_a_phone_that_only_registers_is_told_too():
    ua = server()
    phone = Desk(ua)
    phone.register()
    assert phone.shown() == []
    ua.phones.show({"101": (1, 0)}, START)
    phone.read()
    assert phone.shown() == ["1/0"]
    other = Desk(ua, flow=OFFICE, port=7)
    other.register()
    assert other.shown() == ["1/0"]


def test_one_that_has_subscribed_is_told_once():
    ua = server()
    phone = Desk(ua)
    phone.register()
    phone.subscribe()
    phone.shown()
    ua.phones.show({"101": (1, 0)}, START)
    phone.read()
    assert phone.shown() == ["1/0"]


def test_a_subscription_is_refreshed_and_ended_within_it():
    ua = server()
    phone = Desk(ua)
    answer = phone.subscribe()
    phone.shown()
    request = phone.request("SUBSCRIBE", SUMMARY, ("Expires", "0"))
    request.headers.set("To", f"<sip:101@192.0.2.1>;tag={answer.to.tag}")
    assert phone.ask(request).status == 200
    assert phone.notified[0].headers.get("Subscription-State").startswith("terminated")
    assert len(ua.phones.message_waiting) == 0


def test_subscriptions_end_with_their_time_their_connection_and_a_phone_that_forgot_them():
    ua = server()
    timed, lost, forgetful = Desk(ua), Desk(ua, flow=OFFICE), Desk(ua, "102", "bob's")
    timed.subscribe(SUMMARY, ("Expires", "60"))
    lost.subscribe()
    forgetful.answers = 481
    forgetful.subscribe()
    assert len(ua.phones.message_waiting) == 2
    ua.flow_failed(OFFICE, START + 1)
    assert len(ua.phones.message_waiting) == 1
    ua.handle_timer(START + 61)
    assert len(ua.phones.message_waiting) == 0


@pytest.mark.parametrize(
    ("headers", "to", "status"),
    [
        ([("Event", "presence")], "", 489),
        ([SUMMARY], "102", 403),
        ([SUMMARY, ("Expires", "3")], "", 423),
    ],
)
def test_what_is_not_ones_own_mailbox_is_refused(headers, to, status):
    ua = server()
    phone = Desk(ua)
    assert phone.subscribe(*headers, to=to).status == status
    assert len(ua.phones.message_waiting) == 0


def test_without_the_password_nobody_learns_what_waits():
    ua = server()
    ua.phones.show({"101": (1, 0)}, START)
    stranger = Desk(ua, "101", "wrong")
    assert stranger.subscribe().status == 401
    assert stranger.notified == []


def test_many_subscriptions_stay_bounded():
    ua = server(requests_per_second=1000)
    for number in range(30):
        phone = Desk(ua, flow=HOME, port=5000 + number)
        phone.subscribe()
    assert len(ua.phones.message_waiting) <= 8
