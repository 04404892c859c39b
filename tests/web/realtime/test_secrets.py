"""Client secrets: what they grant, until when, and where."""

import base64
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.realtime.secrets import (
    MAX_S,
    MAX_SECRET_CHARS,
    MIN_S,
    ClientSecrets,
    agent_of_model,
    parse_secret_request,
)
from offhook.web.realtime.sessions import MAX_SESSION_BYTES, validated_session
from offhook.web.speech_api.errors import ApiError

NOW = 1_000_000.5


SECRETS = ClientSecrets("the server's key")


@given(st.integers(MIN_S, MAX_S), st.sampled_from(("", "sales")))
def test_a_secret_opens_its_session_with_its_agent_until_it_expires(seconds, agent):
    session = {"type": "realtime", "instructions": "Be brief."}
    text, expires_at = SECRETS.create(session, agent, seconds, NOW)
    assert text.startswith("ek_")
    assert len(text) > 40
    assert expires_at == int(NOW) + seconds
    for _ in range(2):  # any number of times
        token = SECRETS.find(text, expires_at - 0.1)
        assert (token.scopes, token.agent, token.session) == (("call",), agent, session)
        assert token.expires_at == expires_at
    assert SECRETS.find(text, expires_at) is None


def test_a_transcription_session_is_of_the_speech_api():
    text, _ = SECRETS.create({"type": "transcription"}, "", MIN_S, NOW)
    assert SECRETS.find(text, NOW).scopes == ("speech",)


def test_what_is_not_the_secret_opens_nothing():
    text, _ = SECRETS.create({"type": "realtime"}, "", MIN_S, NOW)
    others = ["", "ek_", text[:-4], text + "AAAA", text.swapcase(), "ek_\udcff", "ek_ü"]
    for at in range(3, len(text) - 1):  # the last character has bits without meaning
        others.append(text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :])
    assert not any(SECRETS.find(other, NOW) for other in others)


@given(st.text(max_size=200))
def test_any_text_is_no_secret(text):
    assert SECRETS.find(f"ek_{text}", NOW) is None


def test_a_secret_is_valid_where_the_key_is_the_same():
    """After a restart, and at the servers beside it; not after the key has changed."""
    text, _ = SECRETS.create({"type": "realtime"}, "", MIN_S, NOW)
    assert ClientSecrets("the server's key").find(text, NOW) == SECRETS.find(text, NOW)
    assert ClientSecrets("another key").find(text, NOW) is None


def test_a_secret_does_not_tell_what_is_in_it():
    session = {"type": "realtime", "instructions": "Never sell below forty."}
    text, _ = SECRETS.create(session, "sales", MIN_S, NOW)
    body = text.removeprefix("ek_")
    held = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    assert all(word not in held for word in (b"forty", b"sales", b"realtime"))
    again, _ = SECRETS.create(session, "sales", MIN_S, NOW)
    assert again[3:13] != text[3:13]


def test_a_session_that_no_header_holds_is_refused():
    instructions = " ".join(f"{number} bicycles in stock." for number in range(2_000))
    text, _ = SECRETS.create({"type": "realtime", "instructions": instructions}, "", 20, NOW)
    assert len(text) < MAX_SECRET_CHARS
    noise = random.Random(1).randbytes(12_000).hex()
    with pytest.raises(ApiError, match="leave instructions") as error:
        SECRETS.create({"type": "realtime", "instructions": noise}, "", 20, NOW)
    assert (error.value.status, error.value.param) == (400, "session")


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"{", None, "invalid_value"),
        (b'{"expires_after": {"anchor": "now"}}', "expires_after.anchor", "invalid_value"),
        (b'{"expires_after": {"seconds": 9}}', "expires_after.seconds", "invalid_value"),
        (b'{"expires_after": {"seconds": 7201}}', "expires_after.seconds", "invalid_value"),
        (b'{"expires_after": {"seconds": "60"}}', "expires_after.seconds", "invalid_value"),
        (b'{"sessions": {}}', "sessions", "unknown_parameter"),
    ],
)
def test_a_wrong_body_is_refused_by_its_field(body, param, code):
    with pytest.raises(ApiError) as error:
        parse_secret_request(body)
    assert (error.value.status, error.value.param, error.value.code) == (400, param, code)


def test_an_empty_body_asks_for_the_usual():
    for body in (b"", b"{}"):
        wanted = parse_secret_request(body)
        assert (wanted.expires_after.seconds, wanted.session) == (600, {})


def test_a_session_is_kept_as_given_and_shown_in_full():
    given = {"instructions": "Be brief.", "audio": {"output": {"voice": "cedar"}}}
    kept, shown = validated_session(given)
    assert kept == {"type": "realtime", **given}
    assert shown["object"] == "realtime.session"
    assert shown["audio"]["output"]["voice"] == "cedar"
    assert shown["audio"]["input"]["turn_detection"]["type"] == "server_vad"
    kept, shown = validated_session({"type": "transcription"})
    assert shown["object"] == "realtime.transcription_session"


@pytest.mark.parametrize(
    ("session", "param", "code"),
    [
        ({"type": "video"}, "session.type", "invalid_parameter"),
        ({"instruction": "x"}, "session.instruction", "unknown_parameter"),
        ({"instructions": 7}, "session.instructions", "invalid_value"),
        ({"type": "transcription", "voice": "x"}, "session.voice", "unknown_parameter"),
        ({"instructions": "x" * MAX_SESSION_BYTES}, "session", None),
    ],
)
def test_a_wrong_session_is_refused_by_its_field(session, param, code):
    with pytest.raises(ApiError) as error:
        validated_session(session)
    assert (error.value.status, error.value.param, error.value.code) == (400, param, code)


def test_a_model_means_an_agent():
    agents = {"sales"}
    assert agent_of_model("sales", agents) == "sales"
    for usual in (
        None,
        "",
        "gpt-realtime",
        "gpt-realtime-2.1-mini",
        "gpt-4o-mini-realtime-preview",
        "default",
    ):
        assert agent_of_model(usual, agents) == ""
    for unknown in ("Sales", "my-model"):
        with pytest.raises(ApiError) as error:
            agent_of_model(unknown, agents)
        assert (error.value.status, error.value.code) == (404, "model_not_found")


FIELDS = ("type", "model", "instructions", "tools", "audio", "output_modalities", "tracing", "x")
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("input", "output", "type", "name", "voice")), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(FIELDS), values))
def test_any_session_is_kept_or_refused(table):
    try:
        parse_secret_request(json.dumps({"session": table}).encode())
        kept, shown = validated_session(table)
    except ApiError:
        return
    assert validated_session(kept)[1] == shown
    text, _ = SECRETS.create(kept, "", MIN_S, NOW)
    assert SECRETS.find(text, NOW).session == kept
