"""What damaged messages have led to once."""

from time import thread_time

import numpy as np
import pytest

from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.g711 import PcmuDecoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder, libopus
from offhook.media.pcm import RATE_OUT
from offhook.media.rtp.receiver import AudioReceiver
from offhook.media.rtp.rtp import RtpPacket
from offhook.media.rtp.telephone_event import MAX_EVENTS, EventReceiver
from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.media.offer_answer import (
    MediaNegotiation,
    MediaSettings,
    NotAcceptable,
    Sdes,
)
from offhook.telephony.sip.messages.message import Request, parse_message, respond
from offhook.telephony.sip.sessions.dialog_requests import MAX_SENT
from offhook.telephony.sip.sessions.session_events import SessionSettings
from offhook.telephony.sip.trunks.registration import Registration
from offhook.telephony.sip.trunks.registration_table import RegistrationState
from offhook.telephony.sip.trunks.trunks import Trunk
from offhook.telephony.sip.user_agent import CallReceived, UserAgent
from tests.telephony.sip.session_peers import ANSWER, OFFER, OTHER, calls, run
from tests.telephony.sip.test_user_agent import PBX, SDP, agent, answers, events, message

TIMED = SessionSettings(session_seconds=1800)
OFFICE = Trunk(
    "office",
    username="us",
    password="secret",
    server="198.51.100.7",
    register=True,
    options_seconds=0,
)


def sent(ua: UserAgent) -> list[Request]:
    parsed = [parse_message(data) for data, _ in ua.messages_to_send()]
    return [m for m in parsed if isinstance(m, Request)]


def pass_time(ua: UserAgent, until: float) -> None:
    while (timer := ua.get_timer()) is not None and timer <= until:
        ua.handle_timer(timer)
        ua.upkeep.keep_alives_to_send(timer)
        ua.messages_to_send()
        events(ua)


def call_up(ua: UserAgent, *headers: str) -> CallReceived:
    """A call that is answered and acknowledged."""
    ua.receive(message("INVITE", "sip:100@192.0.2.1", *headers), PBX, 0)
    call = next(e for e in events(ua) if isinstance(e, CallReceived))
    call.session.accept(SDP, 0)
    ua.session_changed(call.session, 0)
    ua.receive(message("ACK", body="", branch="z9hG4bKa", to_tag=call.session.local_tag), PBX, 0)
    ua.messages_to_send()
    events(ua)
    return call


# --- transactions ---


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("CSeq: 1 ", "CSeq: 2 "), ("Call-ID: ", "Call-ID: x"), (";tag=", ";tag=x")],
)
def test_a_response_to_something_else_does_not_stand_for_the_answer(right, wrong):
    """The registration would wait for the answer for ever."""
    ua = agent(trunks=(OFFICE,))
    ua.use_targets("office", [PBX], 0)
    ua.register(Registration(OFFICE, ua.addresses.contact(PBX, OFFICE)), 0)
    [register] = sent(ua)
    answer = respond(register, 200, to_tag="r").serialize().decode()
    assert right in answer
    ua.receive(answer.replace(right, wrong, 1).encode(), PBX, 1)
    pass_time(ua, 33)
    [status] = ua.upkeep.registrations.statuses
    assert status.state is RegistrationState.WAITING
    assert "timeout" in status.detail


def test_a_reinvite_that_rings_when_the_call_ends_is_given_up():
    ua = agent()
    call = call_up(ua)
    call.session.reoffer(SDP, 1)
    ua.session_changed(call.session, 1)
    [invite] = sent(ua)
    ua.receive(respond(invite, 183).serialize(), PBX, 1.1)
    call.session.hang_up(2)
    ua.session_changed(call.session, 2)
    assert sorted(request.method for request in sent(ua)) == ["BYE", "CANCEL"]
    pass_time(ua, 72)
    assert ua.sessions == 0
    assert ua.transactions == 0


# --- the user agent ---


def test_a_call_that_is_over_wants_no_timer():
    ua = agent()
    call = call_up(ua, "Session-Expires: 1800;refresher=uac", "Supported: timer")
    pass_time(ua, 1)
    call.session.hang_up(1)
    ua.session_changed(call.session, 1)
    pass_time(ua, 71)
    assert ua.get_timer() is None


# --- sessions ---


@pytest.mark.parametrize("route", ["rip:198.51.100.1;lr", "tel:+1555", "https://x.example"])
def test_what_is_no_sip_uri_is_no_way_to_the_far_end(route):
    ua = agent()
    call = call_up(ua, f"Record-Route: <{route}>, <sip:198.51.100.9;lr>")
    call.session.hang_up(1)
    ua.session_changed(call.session, 1)
    [bye] = sent(ua)
    assert str(bye.uri) == "sip:caller@198.51.100.7:5060"
    assert [str(each.uri) for each in bye.routes] == ["sip:198.51.100.9;lr"]


def test_who_cannot_be_called_back_is_not_answered():
    ua = agent()
    data = message()
    data = data.replace(b"Contact: <sip:caller@198.51.100.7:5060>\r\n", b"")
    data = data.replace(b"From: <sip:caller@198.51.100.7>", b"From: <https://caller.example>")
    ua.receive(data, PBX, 0)
    assert [answer.status for answer in answers(ua)] == [400]


def test_acknowledgements_of_ringing_have_their_number_too():
    """A far end that never answers them may not have us send more and more."""
    session, far = calls(sdp=OFFER)
    for number in range(1, 4 * MAX_SENT):
        headers = [("Require", "100rel"), ("RSeq", str(number))]
        far.answer(session, 0.01 * number, 180, *headers, to=0)
    assert far.methods.count("PRACK") < MAX_SENT
    far.answer(session, 3, 200, to=1)
    acknowledged = far.methods.count("PRACK")
    headers = [("Require", "100rel"), ("RSeq", str(acknowledged + 1))]
    far.answer(session, 3.1, 180, *headers, to=0)
    assert far.methods.count("PRACK") == acknowledged + 1


@pytest.mark.parametrize("status", [407, 422])
def test_what_was_agreed_before_a_call_is_placed_anew_does_not_hold_for_it(status):
    """There was nobody to send the offer to that the owner made meanwhile."""
    session, far = calls(sdp=OFFER, digest=DigestClient("us", "secret"), settings=TIMED)
    headers = [("Require", "100rel"), ("RSeq", "1"), ("Allow", "UPDATE")]
    far.answer(session, 1, 183, *headers, sdp=ANSWER)
    far.answer(session, 1, 200, to=1)
    session.reoffer(OTHER, 2)
    assert far.methods == ["INVITE", "PRACK", "UPDATE"]
    far.answer(session, 2, 491, to=2)
    again = {407: ("Proxy-Authenticate", 'Digest realm="r", nonce="n"'), 422: ("Min-SE", "3600")}
    far.answer(session, 2.1, status, again[status], to=0)
    far.answer(session, 2.2, 180, tag="another", to=3)
    run(session, 10)
    assert far.methods[3:] == ["INVITE"]
    far.answer(session, 11, 200, sdp=ANSWER, tag="another", to=3)
    run(session, 12)
    assert far.methods[4:] == ["INVITE"]


# --- media ---


def end(host: str, **settings: object) -> MediaNegotiation:
    return MediaNegotiation(MediaSettings(**settings), host, 4000, 4001, 7)


def test_a_line_that_must_be_protected_stays_so_when_an_answer_says_nothing_of_keys():
    """The first offer was one of RFC 8643, and so its protocol is the plain one."""
    line, phone = end("192.0.2.1", srtp="required"), end("192.0.2.2", srtp="optional")
    phone.accept(line.answer(phone.offer()))
    before = line.plan
    assert before is not None
    assert isinstance(before.security, Sdes)
    plain = end("192.0.2.2", srtp="off").answer(line.offer())
    with pytest.raises(NotAcceptable):
        line.accept(plain)
    assert line.plan is before


@pytest.mark.slow
def test_a_description_of_nothing_but_formats_is_read_in_no_time():
    text = end("192.0.2.2").offer() + "a=rtpmap:1 x/1/1/1/1/1/1/1\r\n" * 900
    times = []
    for _ in range(3):
        started = thread_time()
        end("192.0.2.1").answer(text)
        times.append(thread_time() - started)
    assert min(times) < 0.02


def test_one_packet_is_not_hundreds_of_key_presses():
    events = b"".join(bytes((n % 10, 0x8A, 0, 160)) for n in range(500))
    pressed = EventReceiver().receive(RtpPacket(101, 1, 0, 7, events))
    assert pressed == "0123456789"[:MAX_EVENTS]


def opus_packets() -> tuple[bytes, bytes]:
    """One of 5 ms, and one that brings along what was said before it."""
    time = np.arange(RATE_OUT) / RATE_OUT
    noise = np.random.default_rng(1).normal(0, 800, RATE_OUT)
    sound = np.asarray(8000 * np.sin(2 * np.pi * 200 * time) + noise, np.int16)
    encoder = OpusEncoder()
    encoder.set_loss(0.3)
    made = [encoder.encode(sound[i : i + 480]) for i in range(0, 9600, 480)]
    redundant = next(p for p in made if libopus().opus_packet_has_lbrr(p, len(p)) == 1)
    return OpusEncoder().encode(sound[:120]), redundant


def test_a_long_packet_of_another_codec_does_not_say_how_long_one_of_opus_is():
    """libopus would have written beyond the end of its buffer."""
    asked = []
    short, redundant = opus_packets()

    class Watched(OpusDecoder):
        def recover(self, following: bytes, samples: int):
            asked.append(samples)
            return super().recover(following, samples)

    receiver = AudioReceiver({0: PcmuDecoder, 111: Watched})
    now = 1.0

    def take(payload_type: int, number: int, timestamp: int, payload: bytes, pulls: int) -> None:
        nonlocal now
        receiver.receive(RtpPacket(payload_type, number, timestamp, 7, payload), now)
        for _ in range(pulls):
            receiver.pull(now)
            now += 0.02

    take(0, 1, 0, bytes(2000), 20)
    take(111, 2, 10_000, short, 3)
    take(111, 4, 10_000 + 240 + 960, redundant, 6)
    assert asked
    assert max(asked) <= 320


def test_opus_recovers_no_more_than_a_packet_can_have():
    decoder = OpusDecoder()
    _, redundant = opus_packets()
    with pytest.raises(CodecError):
        decoder.recover(redundant, 4000)
    recovered = decoder.recover(redundant, 1920)
    assert recovered is not None
    assert len(recovered) == 1920
