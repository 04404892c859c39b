"""What was said can be read afterwards, and nothing in it opens a door."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip import trace as module
from offhook.telephony.sip.auth.credentials import Challenge, Credentials, answer
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.trace import Trace

FLOW = Flow("UDP", ("192.0.2.1", 5060), ("10.0.0.1", 5060))
FLOW6 = Flow("TLS", ("2001:db8::1", 5061), ("2001:db8::2", 40000), 7)
NOON = 1_795_262_400.0
KEY = "d0RmdmcmVCspeEc3QGZiNWpVLFJhQX1cfHAwJSoj"


def message(
    start="INVITE sip:100@b.example SIP/2.0", *headers, body="", call_id="abc123@a.example"
):
    method = start.partition(" ")[0] if not start.startswith("SIP/") else "INVITE"
    lines = [start, "Via: SIP/2.0/UDP 10.0.0.1;branch=z9hG4bK1", f"Call-ID: {call_id}"]
    return "\r\n".join([*lines, f"CSeq: 1 {method}", *headers, "", body]).encode()


def taken(data, flow=FLOW, sent=True):
    trace = Trace(10)
    trace.record(data, flow, sent, NOON)
    (entry,) = trace.as_dicts()
    return entry["text"]


def test_the_ladder_has_a_line_for_each_message_with_its_columns_under_each_other():
    trace = Trace(10)
    trace.record(message(), FLOW, True, NOON + 0.0012)
    trace.record(message("SIP/2.0 100 Trying"), FLOW, False, NOON + 0.020)
    trace.record(message("SIP/2.0 200 OK", call_id="z"), FLOW6, False, NOON + 1)
    lines = trace.render().splitlines()
    assert len(lines) == 4
    columns = [lines[0].index(name) for name in ("WHO", "BY", "MESSAGE", "CSEQ", "CALL-ID")]
    for line in lines[1:]:
        assert all(line[c - 2 : c] == "  " and line[c] != " " for c in columns), line
    assert lines[1].startswith("12:00:00.001  10.0.0.1:5060  ")
    assert lines[1].endswith("  INVITE sip:100@b.example SIP/2.0  1 INVITE  abc123@a.example")
    assert lines[2].split()[1:4] == ["10.0.0.1:5060", "◀──", "192.0.2.1:5060"]
    assert lines[3].split()[1:5] == ["[2001:db8::2]:40000", "◀──", "[2001:db8::1]:5061", "TLS"]


def test_long_lines_and_call_ids_are_cut_in_the_ladder_only():
    trace = Trace(10)
    trace.record(message(f"INVITE sip:{'9' * 200}@b SIP/2.0", call_id="c" * 99), FLOW, True, NOON)
    ladder = trace.render()
    assert "…" in ladder
    assert max(map(len, ladder.splitlines())) < 180
    assert "9" * 200 in trace.render("c")


def test_one_call_is_picked_by_the_beginning_of_its_call_id_and_shown_in_full():
    trace = Trace(10)
    trace.record(message(), FLOW, True, NOON)
    trace.record(message("BYE sip:b SIP/2.0", call_id="other"), FLOW, True, NOON)
    shown = trace.render("abc123")
    assert "Via: SIP/2.0/UDP 10.0.0.1;branch=z9hG4bK1" in shown
    assert "BYE" not in shown
    assert [e["call_id"] for e in trace.as_dicts("other")] == ["other"]
    assert trace.render("nobody") == "No messages.\n"
    assert "Via:" not in trace.render(), "all calls together: the ladder alone"


def test_a_compact_call_id_is_one_too():
    trace = Trace(10)
    trace.record(b"BYE sip:b SIP/2.0\r\ni: short\r\nCSeq: 2 BYE\r\n\r\n", FLOW, False, NOON)
    assert trace.as_dicts()[0]["call_id"] == "short"


@pytest.mark.parametrize("name", ["Authorization", "Proxy-Authorization", "AUTHORIZATION "])
def test_credentials_lose_what_a_password_is_guessed_with(name):
    challenge = Challenge("pbx", "NONCE-1", "SHA-256", ("auth",), "OPAQUE-1")
    value = answer(challenge, "INVITE", "sip:100@b", "alice", "p", cnonce="CNONCE-1")
    shown = taken(message("INVITE sip:100@b SIP/2.0", f"{name}: {value}"))
    assert 'username="alice"' in shown
    assert 'realm="pbx"' in shown
    secrets = ["NONCE-1", "OPAQUE-1", "CNONCE-1", Credentials.parse(value).response]
    assert not [s for s in secrets if s in shown]


@pytest.mark.parametrize(
    "line",
    [
        "Authorization: Basic c2VjcmV0",
        "Authorization: Bearer c2VjcmV0",
        "Authorization:Digest\r\n username=a,\r\n\tresponse=c2VjcmV0",
        "Authorization\t: Digest response=c2VjcmV0",
        'Authorization: Digest response="c2VjcmV0',
        "Authorization:\r\n c2VjcmV0",
        "X-Authorization: c2VjcmV0",
        'Authentication-Info: rspauth="c2VjcmV0"',
        "Contact: <sip:user:c2VjcmV0@host>",
        "Refer-To: sip:user;x=1:c2VjcmV0@host",
    ],
)
@pytest.mark.parametrize("newline", ["\r\n", "\n", "\r"])
def test_secrets_in_headers_are_blotted_out_however_they_are_written(line, newline):
    data = message("INVITE sip:100@b SIP/2.0", line).replace(b"\r\n", newline.encode())
    shown = taken(data)
    assert "c2VjcmV0" not in shown
    assert "***" in shown


def test_a_password_in_the_request_uri_is_blotted_out_of_the_first_line_too():
    trace = Trace(10)
    trace.record(message("INVITE sip:u:c2VjcmV0@host SIP/2.0"), FLOW, False, NOON)
    assert "c2VjcmV0" not in str(trace.as_dicts()) + trace.render() + trace.render("abc")
    assert "sip:u:***@host" in trace.render()


def test_the_keys_of_media_are_blotted_out():
    sdp = (
        "v=0\r\nm=audio 4000 RTP/SAVP 0\r\nk=clear:KKKK\r\n"
        "a=ice-pwd:IIII\r\na=key-mgmt:mikey MMMM\r\n"
        f"a=crypto:1 AES_CM_128_HMAC_SHA1_80 inline:{KEY}|2^20|1:4;inline:{KEY}\r\n"
        f" a=Crypto:2 inline:{KEY}\r\na=crypto:{KEY}\r\na=ice-ufrag:UUUU\r\na=sendrecv\r\n"
    )
    shown = taken(message("INVITE sip:b SIP/2.0", "Content-Type: Application/SDP", body=sdp))
    assert not [s for s in (KEY, "KKKK", "IIII", "MMMM") if s in shown]
    for kept in ("a=crypto:1 AES_CM_128_HMAC_SHA1_80 ***", "a=ice-ufrag:UUUU", "m=audio 4000"):
        assert kept in shown
    mixed = f"--b\r\nContent-Type: application/sdp\r\n\r\n{sdp}\r\n--b--"
    shown = taken(message("INVITE sip:b SIP/2.0", "c: multipart/mixed;boundary=b", body=mixed))
    assert KEY not in shown
    assert "m=audio 4000" in shown


@pytest.mark.parametrize(
    ("start", "kind", "body"),
    [
        ("MESSAGE sip:b SIP/2.0", "text/plain", "meet me at ten"),
        ("MESSAGE sip:b SIP/2.0", "application/sdp", "meet me at ten"),
        (
            "MESSAGE sip:b SIP/2.0",
            "multipart/mixed;boundary=x",
            "--x\r\n\r\nmeet me at ten\r\n--x--",
        ),
        ("INFO sip:b SIP/2.0", "application/dtmf-relay", "Signal=meet\r\nDuration=100"),
        ("INVITE sip:b SIP/2.0", "text/plain", "meet me"),
        ("INVITE sip:b SIP/2.0", "", "meet me"),
    ],
)
def test_what_people_write_and_type_is_not_kept(start, kind, body):
    shown = taken(message(start, f"Content-Type: {kind}" if kind else "Subject: x", body=body))
    assert "meet" not in shown
    assert "not stored" in shown


def test_a_message_inside_a_message_keeps_its_secrets_too():
    body = "SIP/2.0 200 OK\r\nAuthorization: Digest\r\n response=c2VjcmV0"
    shown = taken(message("NOTIFY sip:b SIP/2.0", "Content-Type: message/sipfrag", body=body))
    assert "SIP/2.0 200 OK" in shown
    assert "c2VjcmV0" not in shown


def test_the_terminal_of_whoever_looks_is_left_alone():
    trace = Trace(10)
    trace.record(message("INVITE sip:\x1b[2J@b SIP/2.0", "X: \x07\x9b31m\u202e"), FLOW, False, NOON)
    shown = trace.render("abc")
    assert all(line.isprintable() for line in shown.splitlines())


def test_the_oldest_messages_go_first():
    trace = Trace(3)
    for number in range(10):
        trace.record(message(call_id=str(number)), FLOW, True, NOON)
    assert [e["call_id"] for e in trace.as_dicts()] == ["7", "8", "9"]
    nothing = Trace(0)
    nothing.record(message(), FLOW, True, NOON)
    assert nothing.as_dicts() == []


def test_large_messages_are_cut_and_all_together_stay_within_bounds(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 100_000)
    trace = Trace(1000)
    for number in range(50):
        large = message("INVITE sip:b SIP/2.0", "X: " + "x" * 60_000, call_id=str(number))
        trace.record(large, FLOW, False, NOON)
    entries = trace.as_dicts()
    assert sum(len(e["text"]) for e in entries) <= 100_000
    assert entries[-1]["call_id"] == "49"
    assert "truncated" in entries[-1]["text"]


@given(st.binary(max_size=400), st.booleans())
def test_whatever_comes_is_taken(data, sent):
    trace = Trace(2)
    for whole in (data, message() + data, b"Authorization: " + data):
        trace.record(whole, FLOW, sent, NOON)
    trace.render("")
    assert len(trace.as_dicts()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        b"sip:" * 16_000,
        b"sip:a:" * 10_000,
        b"sip:" + b"a" * 60_000,
        b"\r\n" * 30_000,
        b" \r\n" * 20_000,
        b"Authorization: Digest " + b'a="a",' * 10_000,
        b"INVITE sip:b SIP/2.0\r\nc: application/sdp\r\n\r\n" + b"a=crypto:1 " * 6_000,
    ],
)
def test_a_malicious_message_costs_milliseconds(data):
    trace = Trace(2)
    started = time.thread_time()
    trace.record(data, FLOW, False, NOON)
    assert time.thread_time() - started < 0.1
