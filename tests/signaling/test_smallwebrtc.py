"""Bodies of Pipecat's web client, as it sends them and as nobody should."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.signaling.smallwebrtc import (
    MAX_CANDIDATES,
    Candidate,
    Candidates,
    Offer,
    RequestError,
    Start,
    parse_candidates,
    parse_offer,
    parse_start,
)

PARSERS = [(parse_offer, Offer), (parse_candidates, Candidates), (parse_start, Start)]
CANDIDATE = "candidate:1 1 udp 2122260223 10.0.0.7 56143 typ host generation 0"


def encoded(**fields):
    return json.dumps(fields).encode()


def test_the_first_offer_of_the_web_client():
    body = encoded(sdp="v=0\r\n", type="offer", pc_id=None, restart_pc=False, requestData={"a": 1})
    assert parse_offer(body) == Offer("v=0\r\n", None, False, {"a": 1})


def test_a_renewed_offer():
    body = encoded(sdp="v=0", type="offer", pc_id="abc", restart_pc=True)
    assert parse_offer(body) == Offer("v=0", "abc", True, {})


def test_request_data_in_either_spelling():
    assert parse_offer(encoded(sdp="", type="offer", request_data={"b": 2})).request_data == {
        "b": 2
    }


def test_trickled_candidates_and_their_end():
    first = {"candidate": CANDIDATE, "sdp_mid": "0", "sdp_mline_index": 0}
    last = {"candidate": "", "sdp_mid": None, "sdp_mline_index": None}
    body = encoded(pc_id="abc", candidates=[first, last])
    expected = (Candidate(CANDIDATE, "0", 0), Candidate("", None, None))
    assert parse_candidates(body) == Candidates("abc", expected)


def test_start_may_say_nothing():
    assert parse_start(b"") == parse_start(b"{}") == Start(False, {})
    body = encoded(enableDefaultIceServers=True, body={"x": [1]}, transport="webrtc")
    assert parse_start(body) == Start(True, {"x": [1]})


@pytest.mark.parametrize(
    ("parse", "body", "message"),
    [
        (parse_offer, b"", "the body is not valid JSON"),
        (parse_offer, b"\xff\xfe", "the body is not valid JSON"),
        (parse_offer, b"[" * 100_000, "the body is not valid JSON"),
        (parse_offer, b"9" * 5000, "the body is not valid JSON"),
        (parse_offer, b"[]", "the body is not a JSON object"),
        (parse_offer, b"{}", "type is missing"),
        (parse_offer, encoded(type="answer", sdp=""), "type is not 'offer'"),
        (parse_offer, encoded(type="offer"), "sdp is missing"),
        (parse_offer, encoded(type="offer", sdp=["v=0"]), "sdp is not a str"),
        (parse_offer, encoded(type="offer", sdp="", pc_id=7), "pc_id is not a str"),
        (parse_offer, encoded(type="offer", sdp="", restart_pc=1), "restart_pc is not a bool"),
        (parse_offer, encoded(type="offer", sdp="", requestData=[1]), "requestData is not a dict"),
        (parse_candidates, encoded(candidates=[]), "pc_id is missing"),
        (parse_candidates, encoded(pc_id="a"), "candidates is missing"),
        (parse_candidates, encoded(pc_id="a", candidates={}), "candidates is not a list"),
        (parse_candidates, encoded(pc_id="a", candidates=["x"]), "not a JSON object"),
        (parse_candidates, encoded(pc_id="a", candidates=[{}]), "candidate is missing"),
        (
            parse_candidates,
            encoded(pc_id="a", candidates=[{"candidate": "", "sdp_mline_index": True}]),
            "sdp_mline_index is not a int",
        ),
        (
            parse_candidates,
            encoded(pc_id="a", candidates=[{"candidate": ""}] * (MAX_CANDIDATES + 1)),
            f"more than {MAX_CANDIDATES} candidates",
        ),
        (parse_start, encoded(enableDefaultIceServers="yes"), "enableDefaultIceServers is not a"),
    ],
)
def test_what_is_wrong_is_named(parse, body, message):
    with pytest.raises(RequestError, match=message):
        parse(body)


scalar = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
value = st.recursive(
    scalar,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
names = st.sampled_from(
    [
        *("sdp", "type", "pc_id", "restart_pc", "requestData", "request_data", "candidates"),
        *("enableDefaultIceServers", "body", "candidate", "sdp_mid", "sdp_mline_index"),
    ]
)
candidate = st.dictionaries(names, scalar, max_size=4)
request = st.dictionaries(
    names, st.one_of(value, st.just("offer"), st.lists(candidate, max_size=3)), max_size=7
)


@pytest.mark.parametrize(("parse", "kind"), PARSERS)
@given(body=st.one_of(st.binary(max_size=200), request.map(lambda r: json.dumps(r).encode())))
def test_any_body_is_a_value_or_a_request_error(parse, kind, body):
    try:
        parsed = parse(body)
    except RequestError as error:
        parsed = None
        said = str(error)
    assert isinstance(parsed, kind) if parsed is not None else len(said) > 5


@given(request)
def test_what_is_taken_has_the_promised_types(fields):
    fields = {**fields, "type": "offer", "sdp": "v=0"}
    try:
        offer = parse_offer(json.dumps(fields).encode())
    except RequestError:
        return
    assert offer.sdp == "v=0"
    assert offer.pc_id is None or isinstance(offer.pc_id, str)
    assert isinstance(offer.restart_pc, bool)
    assert isinstance(offer.request_data, dict)
