"""A call that is over is one line that any JSON reader takes."""

import json
from dataclasses import replace

from offhook.telephony.call_record import CallRecord

RECORD = CallRecord(
    call_id="a1",
    edge="sip",
    remote_call_id="x@pc33",
    direction="inbound",
    started="2026-11-21T20:00:00.000Z",
    ended="2026-11-21T20:01:00.000Z",
    end_reason="the far end hung up",
    ended_by="remote",
    status=200,
    answered="2026-11-21T20:00:01.000Z",
    duration_seconds=59.00000001,
    setup_ms=312.49999,
    trunk="carrier",
    caller="+4930123",
    called="100",
    codec="opus",
    srtp="AES_CM_128_HMAC_SHA1_80",
    packets_received=2950,
    mos=4.2,
)


def test_a_record_is_one_line_with_every_field():
    line = RECORD.line()
    assert "\n" not in line
    fields = json.loads(line)
    assert fields.keys() == set(CallRecord.__slots__)
    assert fields["duration_seconds"] == 59
    assert fields["setup_ms"] == 312.5
    assert fields["agent"] == ""


def test_a_call_that_was_never_answered_says_so():
    fields = json.loads(replace(RECORD, answered=None, setup_ms=None, mos=None, status=486).line())
    assert (fields["answered"], fields["setup_ms"], fields["mos"]) == (None, None, None)


def test_whatever_a_peer_calls_itself_it_stays_one_line():
    name = 'a\r\nb\u2028c"\\\x00' + b"\xff\xfe".decode("utf-8", "surrogateescape")
    line = replace(RECORD, caller=name).line()
    assert line.splitlines() == [line]
    line.encode("ascii")
    assert json.loads(line)["caller"] == 'a\r\nb\u2028c"\\\x00??'
