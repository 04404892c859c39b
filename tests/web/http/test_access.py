"""Who may ask: the policy by itself, without a socket."""

import json
from base64 import urlsafe_b64decode
from dataclasses import replace
from ipaddress import ip_address
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from offhook.web.config.config import Config, ConfigError, load
from offhook.web.config.server import Server
from offhook.web.edge.placing.requests import fault_of_doors, operator_access, outbound_routes
from offhook.web.http.access import (
    MAX_TOKEN_S,
    SCOPES,
    AccessPolicy,
    Grant,
    Head,
    Key,
    Refusal,
    Role,
    Token,
    TokenRequestError,
    host_name,
    is_foreign,
    is_loopback,
    issue_token,
    parse_token_request,
    read_token,
)
from tests.attack.carriers import PROXIES

NOW = 1_000_000.0
HERE = "127.0.0.1:7860"
CALLERS = (Role.PUBLIC, Role.CALL, Role.SPEECH, Role.REALTIME)
ADMIN = "the operator's"
TRUNK = {"trunks": [{"name": "provider", "server": "sip.provider.example"}]}
TWILIO = {"provider": "twilio", "account": "AC1", "secret": "s", "public_url": "https://v.example"}


def head(method="GET", peer="127.0.0.1", host=HERE, same_user=True, for_proxy=False, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    given = CIMultiDict({"Host": host, **named})
    return Head(method, peer, given, for_proxy, lambda: same_user)


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def status(policy, role, asked, **more):
    """200, or that of the refusal."""
    try:
        policy.admit(role, asked, NOW, **more)
    except Refusal as refusal:
        return refusal.status
    return 200


# --- names ---


@given(st.text(max_size=30))
def test_what_is_no_address_and_no_name_of_ours_is_refused(host):
    policy = AccessPolicy(names=frozenset(("voice.example",)))
    name = host_name(host)
    try:
        own = name in ("localhost", "voice.example") or bool(ip_address(name))
    except ValueError:
        own = False
    for role in CALLERS:
        assert status(policy, role, head(host=host)) == (200 if own else 403)
    assert status(policy, Role.PROBE, head(host=host)) == 200


@pytest.mark.parametrize(
    ("authority", "name"),
    [
        ("LocalHost:7860", "localhost"),
        ("[::1]:7860", "::1"),
        ("[2001:DB8::1]", "2001:db8::1"),
        ("voice.example", "voice.example"),
        ("voice.example:", "voice.example"),
        ("", ""),
        ("[x", ""),
        ("[::1", ""),
        ("[::1]evil.example", ""),
        ("[::1]:1@evil.example", ""),
        ("[::1%1]", ""),
        ("[localhost]", ""),
        ("::1", ""),
        ("127.0.0.1:1@evil.example", ""),
        ("localhost:evil.example", ""),
        ("localhost:65536", ""),
        ("localhost/", ""),
        ("localhost\n", ""),
    ],
)
def test_a_name_is_without_its_port(authority, name):
    assert host_name(authority) == name


_NAMES = st.sampled_from(["localhost", "127.0.0.1", "[::1]", "[::1", "::1", "evil.example"])
_BETWEEN = st.sampled_from(["", ":", ":1", ":7860", "@", "]", "[", "%25", "/", "\\", " ", "?", "#"])


@given(st.lists(_NAMES | _BETWEEN, max_size=6).map("".join) | st.text(max_size=20))
def test_a_browser_reads_every_host_that_is_ours_as_we_do(authority):
    """What a browser would connect to for http://AUTHORITY/ is the name that we take it for."""
    name = host_name(authority)
    if not name:
        return
    parts = urlsplit(f"http://{authority}/")
    assert (parts.hostname, parts.username, parts.password) == (name, None, None)
    assert parts.netloc == authority
    assert (parts.path, parts.query, parts.fragment) == ("/", "", "")
    assert parts.port is None or 0 <= parts.port <= 65_535


def test_this_machine_has_several_names():
    for name in ("localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert is_loopback(name)
    for name in (
        "",
        "0.0.0.0",
        "192.0.2.1",
        "::",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
    ):
        assert not is_loopback(name)


# --- callers ---


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "file://"]
)
def test_a_page_of_another_site_is_refused_with_or_without_the_key(method, origin):
    keyed = AccessPolicy(keys=(Key("server", "k"),), admin_key=ADMIN)
    for policy, key in ((AccessPolicy(), ""), (keyed, "k"), (keyed, ADMIN)):
        asked = head(method, Origin=origin, **bearer(key))
        for role in (Role.CALL, Role.SPEECH, Role.OPERATOR):
            assert status(policy, role, asked) == 403


def test_the_refusal_of_a_page_names_the_setting_that_admits_it():
    policy = Config(server=Server(origins=frozenset(("https://app.example",)))).access()
    with pytest.raises(Refusal, match=r"a page of https://evil.example .*\[server\] origins"):
        policy.admit(Role.CALL, head("POST", Origin="https://evil.example"), NOW)
    for role in (Role.CALL, Role.SPEECH):
        assert status(policy, role, head("POST", Origin="https://app.example")) == 200
    assert status(policy, Role.OPERATOR, head(Origin="https://app.example")) == 403


def test_our_own_page_is_no_other_site():
    assert not is_foreign(f"http://{HERE}", HERE)
    assert status(AccessPolicy(), Role.CALL, head("POST", Origin=f"http://{HERE}")) == 200


FORWARDED = [*({name.replace("-", "_"): value} for name, value in PROXIES), {"for_proxy": True}]


@pytest.mark.parametrize("trace", FORWARDED, ids=lambda trace: next(iter(trace)))
def test_what_a_proxy_passes_on_is_not_of_this_machine(trace):
    asked = head(**trace)
    for role in (*CALLERS, Role.OPERATOR):
        assert status(AccessPolicy(), role, asked) == 403
    named = AccessPolicy(names=frozenset(("voice.example",)))
    for role in CALLERS:
        assert status(named, role, head(host="voice.example", **trace)) == 200
        assert status(named, role, asked) == 403
    keyed = AccessPolicy(keys=(Key("server", "k"),))
    assert status(keyed, Role.CALL, head(**trace, **bearer("k"))) == 200
    assert status(AccessPolicy(local=False), Role.CALL, asked) == 200


CLIENTS = [
    # a browser's request of a page, of a script, of a WebSocket
    "Accept Accept-Encoding Accept-Language Connection Cookie DNT Host If-None-Match Referer "
    "Sec-Fetch-Dest Sec-Fetch-Mode Sec-Fetch-Site Sec-CH-UA Sec-CH-UA-Mobile Sec-GPC "
    "Upgrade-Insecure-Requests User-Agent Priority Cache-Control Pragma Save-Data",
    "Content-Type Content-Length Authorization Access-Control-Request-Method X-Requested-With",
    "Upgrade Sec-WebSocket-Key Sec-WebSocket-Version Sec-WebSocket-Extensions "
    "Sec-WebSocket-Protocol",
    # programs
    "X-Stainless-Lang X-Stainless-Retry-Count OpenAI-Beta OpenAI-Organization Idempotency-Key "
    "X-Request-Id traceparent tracestate baggage",
    "X-Prometheus-Scrape-Timeout-Seconds Accept",
    "Mcp-Session-Id Last-Event-ID Transfer-Encoding Expect Range TE Trailer",
]


@pytest.mark.parametrize("names", CLIENTS, ids=lambda names: names.split()[0])
def test_what_browsers_and_programs_send_is_no_sign_of_a_proxy(names):
    asked = head(**{name.replace("-", "_"): "x" for name in names.split() if name != "Host"})
    assert asked.proxied == ""


def test_the_refusal_names_the_header_that_gave_the_proxy_away():
    for role in (Role.CALL, Role.OPERATOR):
        with pytest.raises(Refusal, match=r"'cf-ray'.*set \[server\]"):
            AccessPolicy().admit(role, head(CF_Ray="8a1"), NOW)


def test_keys_are_good_for_what_they_are_for():
    policy = AccessPolicy(
        keys=(Key("bot", "b", frozenset(("speech",))), Key("server", "s")), admin_key=ADMIN
    )
    for key, call, speech, operator in (
        ("b", 401, 200, 401),
        ("s", 200, 200, 401),
        (ADMIN, 200, 200, 200),
        ("x", 401, 401, 401),
        ("", 401, 401, 401),
    ):
        asked = head("POST", **bearer(key))
        assert status(policy, Role.CALL, asked) == call
        assert status(policy, Role.SPEECH, asked) == speech
        assert status(policy, Role.OPERATOR, asked) == operator
    protocols = "realtime, openai-insecure-api-key.b"
    assert policy.admit(Role.SPEECH, head(Sec_WebSocket_Protocol=protocols), NOW).key == "bot"


def test_keys_of_programs_alone_leave_calls_open():
    policy = AccessPolicy(keys=(Key("bot", "b", frozenset(("speech",))),))
    assert status(policy, Role.CALL, head("POST")) == 200
    assert status(policy, Role.CALL, head("POST", host="evil.example")) == 403
    assert status(policy, Role.SPEECH, head("POST")) == 401


# --- the operator ---


def test_without_a_key_the_operator_is_who_comes_directly_from_this_machine():
    for local in (True, False):
        policy = AccessPolicy(local=local)
        for peer, host in (("127.0.0.1", HERE), ("::1", "[::1]:1"), ("", "localhost")):
            assert status(policy, Role.OPERATOR, head(peer=peer, host=host)) == 200
        for refused in (
            head(peer="192.0.2.1"),
            head(peer="192.0.2.1", host="localhost"),
            head(host="192.0.2.7:7860"),
            head(host="evil.example"),
            head(same_user=False),
            head(**bearer("a caller's")),
        ):
            assert status(policy, Role.OPERATOR, refused) == 403


def test_with_a_listener_of_its_own_the_operator_is_nowhere_else():
    policy = AccessPolicy(admin_listen="unix:/run/admin")
    assert status(policy, Role.OPERATOR, head()) == 403
    assert status(policy, Role.OPERATOR, head(peer="", host="localhost"), admin=True) == 200
    assert status(policy, Role.OPERATOR, head(host="evil.example"), admin=True) == 403
    keyed = AccessPolicy(admin_listen="127.0.0.1:7861", admin_key=ADMIN)
    assert status(keyed, Role.OPERATOR, head(**bearer(ADMIN))) == 403
    assert status(keyed, Role.OPERATOR, head(), admin=True) == 401
    assert status(keyed, Role.OPERATOR, head(**bearer(ADMIN)), admin=True) == 200


def test_metrics_are_whose_they_are_set_to_be():
    assert Config().access().role_of("/metrics") is Role.PUBLIC
    keyed = Config(server=Server(metrics="key"))
    assert keyed.access().role_of("/metrics") is Role.OPERATOR
    assert keyed.access(gateway=True).role_of("/metrics") is Role.SPEECH


def test_a_route_that_nobody_put_in_the_table_is_the_operators():
    assert AccessPolicy().role_of("/something/new") is Role.OPERATOR
    assert AccessPolicy().role_of("/sip/{call}/events") is Role.OPERATOR
    assert AccessPolicy().role_of("/calls/{call}/events") is Role.RECORDS


# --- carriers ---


@pytest.mark.parametrize(
    ("asked", "may", "own"),
    [
        (head(), True, True),
        (head(host="192.0.2.7:7860"), True, True),
        (head(host="v.example"), True, True),
        (head(host="tunnel.example"), True, False),
        (head(host="evil.example", Origin="http://evil.example"), True, False),
        (head(Origin="https://evil.example"), False, True),
        (head(Origin="https://v.example"), True, True),
        (head(host="v.example", Origin="https://v.example"), True, True),
    ],
)
def test_a_page_cannot_pass_for_a_carrier(asked, may, own):
    """Nor its visitor's address for an Asterisk's, where its name was rebound to ours."""
    policy = Config.model_validate({"carriers": [TWILIO]}).access()
    assert policy.is_own(asked.host) is own
    try:
        policy.check_carrier(asked)
        assert may
    except Refusal:
        assert not may


# --- realtime sessions and call control ---


def test_the_longest_beginning_of_a_path_gives_its_role():
    policy = AccessPolicy()
    for path, role in (
        ("/v1/models", Role.SPEECH),
        ("/v1/realtime", Role.REALTIME),
        ("/v1/realtime/calls", Role.REALTIME),
        ("/v1/realtime/calls/{call}/accept", Role.CONTROL),
        ("/v1/realtime/calls/{call}/leave", Role.SESSION),
        ("/v1/realtime/ice_servers", Role.REALTIME),
        ("/v1/realtime/client_secrets", Role.CONTROL),
        ("/", Role.PUBLIC),
    ):
        assert policy.role_of(path) is role


def secrets_of(**known):
    """A policy whose client secrets are these: name -> token."""
    keys = (Key("server", "k"), Key("bot", "b", frozenset(("speech",))))
    found = {f"ek_{name}": token for name, token in known.items()}
    return AccessPolicy(keys=keys, admin_key=ADMIN, secret_called=lambda text, now: found.get(text))


def test_a_client_secret_opens_realtime_sessions_with_its_agent_only():
    token = Token(("call",), "sales", int(NOW) + 60, {"type": "realtime"})
    policy = secrets_of(one=token)
    asked = head("POST", **bearer("ek_one"))
    grant = policy.admit(Role.REALTIME, asked, NOW)
    assert (grant.agent, grant.scopes, grant.secret) == ("sales", {"call"}, token)
    for role in (Role.CALL, Role.SPEECH, Role.CONTROL, Role.OPERATOR):
        assert status(policy, role, asked) == 401
    assert status(policy, Role.REALTIME, head("POST", **bearer("ek_two"))) == 401


def test_a_client_secret_that_is_unknown_is_refused_where_no_key_is_needed():
    asked = head("POST", **bearer("ek_one"))
    assert status(AccessPolicy(), Role.REALTIME, asked) == 401
    assert status(AccessPolicy(), Role.REALTIME, head("POST")) == 200


def test_realtime_sessions_are_opened_with_a_key_of_calls_or_of_speech():
    policy = secrets_of()
    assert status(policy, Role.REALTIME, head()) == 401
    for key, scopes in (("k", {"call", "speech"}), ("b", {"speech"}), (ADMIN, {"call", "speech"})):
        assert policy.admit(Role.REALTIME, head(**bearer(key)), NOW).scopes == scopes
    token = issue_token(ADMIN, Token(("speech",), "", int(NOW) + 60))
    assert policy.admit(Role.REALTIME, head(**bearer(token)), NOW).scopes == {"speech"}


def test_calls_are_controlled_with_the_api_key_or_the_operators():
    policy = secrets_of(one=Token(("call",), "", int(NOW) + 60))
    token = issue_token(ADMIN, Token(("call", "speech"), "", int(NOW) + 60))
    for key in ("k", ADMIN):
        assert status(policy, Role.CONTROL, head("POST", **bearer(key))) == 200
    for key in ("b", "ek_one", token, "wrong", ""):
        assert status(policy, Role.CONTROL, head("POST", **bearer(key))) == 401
    foreign = head("POST", Origin="https://app.example", **bearer("k"))
    allowed = replace(policy, origins=frozenset(("https://app.example",)))
    assert status(allowed, Role.CONTROL, foreign) == 403


def test_without_a_key_calls_are_controlled_by_this_user_whatever_key_is_sent():
    for key in ("", "sk-anything"):
        assert status(AccessPolicy(), Role.CONTROL, head("POST", **bearer(key))) == 200
    for asked in (
        head("POST", peer="198.51.100.7"),
        head("POST", host="voice.example"),
        head("POST", X_Forwarded_For="198.51.100.7"),
        head("POST", same_user=False),
        head("POST", **bearer("ek_one")),
        head("POST", **bearer("offhook_one")),
    ):
        assert status(AccessPolicy(), Role.CONTROL, asked) == 403


# --- tokens ---


scopes = st.lists(st.sampled_from(SCOPES), min_size=1, max_size=2, unique=True).map(tuple)


@given(scopes, st.text(max_size=20), st.integers(1, MAX_TOKEN_S))
def test_a_token_admits_to_its_scopes_until_it_expires(scope, agent, seconds):
    token = Token(scope, agent, int(NOW) + seconds)
    text = issue_token(ADMIN, token)
    assert read_token(ADMIN, text, NOW) == token
    policy = AccessPolicy(keys=(Key("server", "k"),), admin_key=ADMIN)
    for wanted, role in (("call", Role.CALL), ("speech", Role.SPEECH)):
        may = 200 if wanted in scope else 403
        assert status(policy, role, head("POST", **bearer(text))) == may
    assert status(policy, Role.OPERATOR, head(**bearer(text))) == 401
    with pytest.raises(Refusal, match="expired"):
        read_token(ADMIN, text, NOW + seconds)
    assert policy.grant(Role(scope[0]), head(**bearer(text)), NOW, keyed=True).agent == agent


@given(st.integers(0, 200), st.integers(1, 127))
def test_a_token_that_was_changed_is_none(at, by):
    text = issue_token(ADMIN, Token(("call",), "", int(NOW) + 60))
    at = len("offhook_") + at % (len(text) - len("offhook_"))
    changed = text[:at] + chr(ord(text[at]) ^ by) + text[at + 1 :]
    with pytest.raises(Refusal) as refusal:
        read_token(ADMIN, changed, NOW)
    assert refusal.value.status == 401
    with pytest.raises(Refusal):
        read_token("another key", text, NOW)


def test_a_token_tells_no_secret():
    text = issue_token(ADMIN, Token(("call",), "desk", 7))
    body = text.removeprefix("offhook_").partition(".")[0]
    claims = json.loads(urlsafe_b64decode(body + "=="))
    assert (claims["scope"], claims["agent"], claims["exp"]) == (["call"], "desk", 7)
    assert text != issue_token(ADMIN, Token(("call",), "desk", 7))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "JSON"),
        (b"[]", "object"),
        (b'{"scope": ["operator"]}', "scope"),
        (b'{"scope": []}', "scope"),
        (b'{"ttl_seconds": 0}', "ttl_seconds"),
        (b'{"ttl_seconds": 1e9}', "ttl_seconds"),
        (b'{"admin": true}', "admin"),
        (b'{"variables": {"plan": 1}}', "variables.plan"),
        (b'{"variables": {"name": "%s"}}' % (b"x" * 2000), "variables: .*over 2000 bytes"),
    ],
)
def test_what_is_wrong_with_a_token_is_named(body, says):
    with pytest.raises(TokenRequestError, match=says):
        parse_token_request(body)
    assert parse_token_request(b"{}").scope == ("call",)


# --- the configuration ---


def configured(**server):
    return Config.model_validate({"server": server, "sip": TRUNK})


def test_a_server_that_can_call_out_and_is_reached_from_elsewhere_needs_a_key():
    away = {"host": "0.0.0.0"}
    for tables, ways in (
        ({"sip": TRUNK}, ["provider"]),
        ({"carriers": [TWILIO]}, ["twilio"]),
    ):
        config = Config.model_validate({"server": away, **tables})
        assert outbound_routes(config) == ways
        fault = fault_of_doors(config)
        assert "[server] admin_key" in fault
        assert ways[0] in fault
        for mended in ({"admin_key": "k"}, {"admin_listen": "unix:/run/admin"}):
            assert not fault_of_doors(
                Config.model_validate({"server": {**away, **mended}, **tables})
            )
    assert not fault_of_doors(configured())
    assert fault_of_doors(configured(names=["voice.example"]))
    assert fault_of_doors(Config.model_validate({"carriers": [TWILIO]}))
    for alone in ({}, {"sip": {"trunks": [{"name": "phone", "addresses": ["127.0.0.1"]}]}}):
        assert not fault_of_doors(Config.model_validate({"server": away, **alone}))


def test_who_operates_is_said():
    assert "directly from this machine" in operator_access(configured())
    assert "admin_key" in operator_access(configured(admin_key="k"))
    assert operator_access(configured(admin_listen="unix:/run/a")) == "whoever reaches unix:/run/a"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"admin_listen": "0.0.0.0:7861"}, "admin_listen"),
        ({"admin_listen": "unix:"}, "admin_listen"),
        ({"origins": ["app.example"]}, "origins"),
        ({"origins": ["https://app.example/"]}, "origins"),
        ({"origins": ["*"]}, "origins"),
        ({"names": ["http://voice.example"]}, "names"),
        ({"names": ["voice.example:80"]}, "names"),
        ({"api_key": "k", "admin_key": "k"}, "callers have this key"),
    ],
)
def test_settings_that_do_not_fit_are_named(fields, says):
    with pytest.raises(ValueError, match=says):
        Config.model_validate({"server": fields})


def test_names_and_origins_can_come_from_the_environment(tmp_path):
    (tmp_path / "offhook.toml").touch()
    environment = {
        "OFFHOOK_SERVER_NAMES": '["Voice.example"]',
        "OFFHOOK_SERVER_ORIGINS": '["https://app.example"]',
        "OFFHOOK_SERVER_ADMIN_KEY": "secret",
    }
    config = load(tmp_path / "offhook.toml", environment)
    assert config.server.names == {"voice.example"}
    assert config.access().origins == {"https://app.example"}
    assert "secret" not in repr(config)
    assert "secret" not in repr(config.access())
    with pytest.raises(ConfigError, match="origins"):
        load(tmp_path / "offhook.toml", {"OFFHOOK_SERVER_ORIGINS": '["x"]'})


def test_a_grant_without_a_key_has_no_name():
    assert AccessPolicy().admit(Role.CALL, head(), NOW) == Grant()
