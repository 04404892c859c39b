"""Client secrets: what they grant, until when, and how many there may be."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.realtime.secrets import (
    MAX_S,
    MIN_S,
    ClientSecrets,
    SecretsFull,
    agent_of_model,
    parse_secret_request,
)
from offhook.web.realtime.sessions import MAX_SESSION_BYTES, validated_session
from offhook.web.speech_api.errors import ApiError

NOW = 1_000_000.5


@given(st.integers(MIN_S, MAX_S), st.sampled_from(("", "sales")))
def test_a_secret_opens_its_session_with_its_agent_until_it_expires(seconds, agent):
    secrets = ClientSecrets()
    session = {"type": "realtime", "instructions": "Be brief."}
    text, token = secrets.create(session, agent, seconds, NOW)
    assert text.startswith("ek_")
    assert len(text) > 40
    assert token.expires_at == int(NOW) + seconds
    for _ in range(2):  # any number of times
        assert secrets.find(text, NOW) is token
    assert (token.scopes, token.agent, token.session) == (("call",), agent, session)
    assert secrets.find(text, token.expires_at - 0.1) is token
    assert secrets.find(text, token.expires_at) is None
    assert len(secrets) == 0


def test_a_transcription_session_is_of_the_speech_api():
    _, token = ClientSecrets().create({"type": "transcription"}, "", MIN_S, NOW)
    assert token.scopes == ("speech",)


def test_what_is_not_the_secret_opens_nothing():
    secrets = ClientSecrets()
    text, _ = secrets.create({"type": "realtime"}, "", MIN_S, NOW)
    for other in ("", "ek_", text[:-1], text + "=", text.swapcase(), "ek_\udcff"):
        assert secrets.find(other, NOW) is None


def test_the_secret_is_stored_nowhere():
    secrets = ClientSecrets()
    text, _ = secrets.create({"type": "realtime"}, "", MIN_S, NOW)
    kept = repr(vars(secrets))
    assert text not in kept
    assert text.removeprefix("ek_") not in kept


def test_when_there_are_too_many_none_is_made_and_the_others_stay_valid():
    secrets = ClientSecrets(max_secrets=2)
    texts = [secrets.create({"type": "realtime"}, "", 20 + 10 * i, NOW)[0] for i in range(2)]
    with pytest.raises(SecretsFull) as full:
        secrets.create({"type": "realtime"}, "", 20, NOW + 5)
    assert full.value.retry_after_s == 14
    assert all(secrets.find(text, NOW + 5) for text in texts)
    secrets.create({"type": "realtime"}, "", 20, NOW + 20)
    assert len(secrets) == 2


def test_their_sessions_have_a_limit_together():
    secrets = ClientSecrets(max_bytes=3_000)
    large = {"type": "realtime", "instructions": "a" * 2_000}
    secrets.create(large, "", 20, NOW)
    with pytest.raises(SecretsFull):
        secrets.create(large, "", 20, NOW)
    secrets.create(large, "", 20, NOW + 21)


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
    secrets = ClientSecrets()
    try:
        parse_secret_request(json.dumps({"session": table}).encode())
        kept, shown = validated_session(table)
    except ApiError:
        return
    assert validated_session(kept)[1] == shown
    text, _ = secrets.create(kept, "", MIN_S, NOW)
    other = ClientSecrets()
    other.add_shared(secrets.shared(text, NOW), NOW)
    token = other.find(text, NOW)
    assert token == secrets.find(text, NOW)
