"""A password is proved without being sent, to a far end that asks and by one that we ask."""

import contextlib
import hashlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.auth import digest as module
from offhook.telephony.sip.auth.credentials import (
    MAX_PARAMETERS,
    Challenge,
    Credentials,
    answer,
    expected_response,
    parse_parameters,
)
from offhook.telephony.sip.auth.digest import DigestClient, DigestServer, Verdict
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.message import Request, parse_message, respond

RFC_7616 = (
    'Digest realm="http-auth@example.org", qop="auth, auth-int", algorithm={algorithm}, '
    'nonce="7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v", '
    'opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"'
)
BOTH = ("SHA-256", "MD5")
PASSWORDS = {"alice": "wonderland", "bob": "builder", "nobody": ""}


def request(method="REGISTER", cseq=1, call_id="c1"):
    lines = (
        f"{method} sip:example.com SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.1;branch=z9hG4bK{cseq}\r\n"
        f"From: <sip:alice@example.com>;tag=1\r\nTo: <sip:alice@example.com>\r\n"
        f"Call-ID: {call_id}\r\nCSeq: {cseq} {method}\r\n\r\n"
    )
    message = parse_message(lines.encode())
    assert isinstance(message, Request)
    return message


def credentials_of(request, header="Authorization"):
    return [Credentials.parse(value) for value in request.headers.all(header)]


# --- arithmetic ---


@pytest.mark.parametrize(
    ("algorithm", "response"),
    [
        ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
        ("SHA-256", "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
    ],
)
def test_the_answers_of_rfc_7616_section_3_9_1_are_given(algorithm, response):
    challenge = Challenge.parse(RFC_7616.format(algorithm=algorithm))
    value = answer(
        challenge,
        "GET",
        "/dir/index.html",
        "Mufasa",
        "Circle of Life",
        cnonce="f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ",
    )
    given = Credentials.parse(value)
    assert given.response == response
    assert (given.qop, given.nonce_count, given.algorithm) == ("auth", "00000001", algorithm)
    assert 'opaque="FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS"' in value


def test_the_answer_of_rfc_2617_section_3_5_is_given():
    challenge = Challenge.parse(
        'Digest realm="testrealm@host.com",qop="auth,auth-int",'
        'nonce="dcd98b7102dd2f0e8b11d0f600bfb0c093",opaque="5ccc069c403ebaf9f0171e9517f40e41"'
    )
    value = answer(
        challenge, "GET", "/dir/index.html", "Mufasa", "Circle Of Life", b"", 1, "0a4f113b"
    )
    assert Credentials.parse(value).response == "6629fae49393a05397450978507c4ef1"
    assert "algorithm" not in value


def test_a_challenge_without_qop_is_answered_as_of_old():
    challenge = Challenge.parse(
        'Digest realm="testrealm@host.com", nonce="dcd98b7102dd2f0e8b11d0f600bfb0c093"'
    )
    value = answer(challenge, "GET", "/dir/index.html", "Mufasa", "CircleOfLife")
    assert Credentials.parse(value).response == "1949323746fe6a43ef61f9606e7febea"
    assert not {"qop", "nc", "cnonce"} & parse_parameters(value)[1].keys()


@pytest.mark.parametrize(
    ("algorithm", "h"), [("MD5-sess", hashlib.md5), ("sha-256-SESS", hashlib.sha256)]
)
def test_a_session_key_is_made_of_nonce_and_cnonce(algorithm, h):
    def hexed(text):
        return h(text.encode()).hexdigest()

    challenge = Challenge.parse(f'Digest realm="r", nonce="n", qop=auth-int, algorithm={algorithm}')
    given = Credentials.parse(answer(challenge, "INVITE", "sip:b@c", "u", "p", b"v=0", 7, "cn"))
    a1 = hexed(hexed("u:r:p") + ":n:cn")
    a2 = hexed("INVITE:sip:b@c:" + hexed("v=0"))
    assert given.response == hexed(f"{a1}:n:00000007:cn:auth-int:{a2}")


def test_what_cannot_be_answered_is_said_to_be_so():
    for text in ('algorithm=SHA-512-256, qop="auth"', 'qop="token"'):
        challenge = Challenge.parse(f'Digest realm="r", nonce="n", {text}')
        assert not challenge.answerable
        with pytest.raises(SipError):
            answer(challenge, "INVITE", "sip:b@c", "u", "p")


# --- the text ---


def test_quoted_strings_keep_their_commas_and_escapes():
    scheme, parameters = parse_parameters(
        'Digest\trealm="a, \\"b\\" = \\\\c" ,, '
        'nonce = "x,y",opaque="",stale=TRUE , qop="auth,auth-int"'
    )
    assert scheme == "Digest"
    assert parameters == {
        "realm": 'a, "b" = \\c',
        "nonce": "x,y",
        "opaque": "",
        "stale": "TRUE",
        "qop": "auth,auth-int",
    }
    challenge = Challenge.parse('Digest realm="a \\"b\\"", nonce="n", stale=True, algorithm="md5"')
    assert challenge.stale
    again = Credentials.parse(answer(challenge, "INVITE", "sip:b@c", 'u"\\', "p"))
    assert (again.realm, again.username) == ('a "b"', 'u"\\')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Digest",
        'Basic realm="r"',
        'Digest realm="r"',
        'Digest nonce="n"',
        'Digest realm="r", nonce="n", realm="s"',
        'Digest realm="r" nonce="n"',
        'Digest realm="r", nonce="n',
        'Digest realm="r", nonce="n\\"',
        'Digest realm="r", nonce="n", ="x"',
        'Digest realm="r", nonce="n", x',
        'Digest realm="r\r\nVia: x", nonce="n"',
    ],
)
def test_what_is_no_challenge_is_refused(text):
    with pytest.raises(SipError):
        Challenge.parse(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "Digest " + 'a="a",' * 10_000,
        "Digest " + ",".join(f'a{i}="a"' for i in range(6000)),
        'Digest a="' + "\\\\" * 30_000 + '"',
        'Digest a="' + '\\"' * 30_000,
        "Digest " + "," * 60_000,
        "Digest " + " " * 60_000 + "=",
        "Digest " + "=" * 60_000,
        "Digest a=" + "a" * 60_000 + '"',
    ],
)
def test_sixty_kilobytes_of_malice_take_milliseconds(text):
    started = time.thread_time()
    with contextlib.suppress(SipError):
        parse_parameters(text)
    assert time.thread_time() - started < 0.05


def test_parameters_are_bounded():
    with pytest.raises(SipError, match="more than"):
        parse_parameters("Digest " + ",".join(f"a{i}=1" for i in range(MAX_PARAMETERS + 1)))


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused(text):
    for parse in (Challenge.parse, Credentials.parse):
        for whole in (text, f"Digest {text}"):
            with contextlib.suppress(SipError):
                parse(whole)


@given(*[st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=20) for _ in range(3)])
def test_what_is_answered_can_be_checked_again(username, realm, password):
    challenge = Challenge(realm, "nonce", "SHA-256", ("auth",))
    given_ = Credentials.parse(answer(challenge, "INVITE", "sip:a@b", username, password))
    assert (given_.username, given_.realm) == (username, realm)
    assert expected_response(given_, "INVITE", password) == given_.response


def test_nothing_secret_is_shown():
    challenge = Challenge.parse('Digest realm="r", nonce="n", qop="auth"')
    given_ = Credentials.parse(
        answer(challenge, "INVITE", "sip:a@b", "u", "pass-word", cnonce="cn!")
    )
    client = DigestClient("u", "pass-word")
    client.authorize(challenged(request(), 'Digest realm="r", nonce="n-o-n-c-e"'), request())
    shown = repr((given_, client, vars(client)["_chains"]))
    assert not any(s in shown for s in ("pass-word", given_.response, "cn!", "n-o-n-c-e"))


# --- the client ---


def challenged(request, *challenges, status=401):
    name = "WWW-Authenticate" if status == 401 else "Proxy-Authenticate"
    return respond(request, status, headers=[(name, c) for c in challenges])


def test_a_challenged_request_is_sent_again_with_an_answer():
    client = DigestClient("alice", "wonderland")
    first = request(cseq=4)
    again = client.authorize(challenged(first, 'Digest realm="r", nonce="n", qop="auth"'), first)
    assert again is not None
    assert again.cseq.number == 5
    assert "Via" not in again.headers
    assert again.call_id == first.call_id
    assert again.from_ == first.from_
    (given_,) = credentials_of(again)
    assert expected_response(given_, "REGISTER", "wonderland") == given_.response
    assert given_.uri == "sip:example.com"
    assert "Authorization" not in first.headers


def test_the_strongest_algorithm_known_is_taken():
    client = DigestClient("alice", "wonderland")
    first = request()
    again = client.authorize(
        challenged(
            first,
            'Digest realm="r", nonce="1", algorithm=MD5',
            'Digest realm="r", nonce="2", algorithm=SHA-512-256, qop="auth"',
            'Digest realm="r", nonce="3", algorithm=SHA-256, qop="auth"',
            'Digest realm="r", nonce="4", algorithm=SHA-256, qop="auth"',
            "Basic realm=r",
        ),
        first,
    )
    assert [(c.algorithm, c.nonce) for c in credentials_of(again)] == [("SHA-256", "3")]


def test_two_realms_each_get_their_answer_and_keep_it():
    client = DigestClient("alice", "wonderland")
    first = request("INVITE")
    second = client.authorize(
        challenged(first, 'Digest realm="proxy", nonce="p", qop="auth"', status=407), first
    )
    third = client.authorize(
        challenged(second, 'Digest realm="home", nonce="h", qop="auth"'), second
    )
    assert third.cseq.number == 3
    (proxy,) = credentials_of(third, "Proxy-Authorization")
    (home,) = credentials_of(third)
    assert (proxy.realm, proxy.nonce_count) == ("proxy", "00000002")
    assert (home.realm, home.nonce_count) == ("home", "00000001")


def test_a_refused_password_is_not_tried_again():
    client = DigestClient("alice", "wrong")
    first = request()
    second = client.authorize(challenged(first, 'Digest realm="r", nonce="1"'), first)
    assert client.authorize(challenged(second, 'Digest realm="r", nonce="1"'), second) is None
    second = client.authorize(challenged(first, 'Digest realm="r", nonce="2"'), first)
    assert client.authorize(challenged(second, 'Digest realm="r", nonce="3"'), second) is None


def test_a_stale_nonce_is_changed_but_not_for_ever():
    client = DigestClient("alice", "wonderland")
    current = request()
    for nonce in range(module.MAX_ROUNDS):
        stale = ", stale=true" if nonce else ""
        current = client.authorize(
            challenged(current, f'Digest realm="r", nonce="{nonce}"{stale}'), current
        )
        assert credentials_of(current)[0].nonce == str(nonce)
    assert (
        client.authorize(challenged(current, 'Digest realm="r", nonce="x", stale=true'), current)
        is None
    )


def test_only_the_realm_of_the_trunk_gets_the_password():
    client = DigestClient("alice", "wonderland", realm="mine")
    first = request()
    assert client.authorize(challenged(first, 'Digest realm="thief", nonce="1"'), first) is None
    again = client.authorize(
        challenged(first, 'Digest realm="thief", nonce="1"', 'Digest realm="mine", nonce="2"'),
        first,
    )
    assert [c.realm for c in credentials_of(again)] == ["mine"]


def test_later_requests_bring_their_credentials_along():
    client = DigestClient("alice", "wonderland")
    first = request()
    client.preempt(first)
    assert "Authorization" not in first.headers
    again = client.authorize(challenged(first, 'Digest realm="r", nonce="n", qop="auth"'), first)
    later = request("BYE", cseq=9)
    client.preempt(later)
    client.preempt(later)
    counts = [c.nonce_count for m in (again, later) for c in credentials_of(m)]
    assert counts == ["00000001", "00000003"]
    # that nonce was used before: it may be stale although the far end does not say so
    renewed = client.authorize(challenged(later, 'Digest realm="r", nonce="m", qop="auth"'), later)
    assert credentials_of(renewed)[0].nonce == "m"


def test_a_far_end_with_ever_new_realms_fills_nothing():
    client = DigestClient("alice", "wonderland")
    for number in range(200):
        first = request(call_id=f"c{number}")
        client.authorize(challenged(first, f'Digest realm="r{number}", nonce="n"'), first)
    late = request()
    client.preempt(late)
    assert len(late.headers.all("Authorization")) == module.MAX_REALMS
    assert len(client._chains) == module.MAX_CHAINS


# --- the server ---


def asked(server, client, first, now, stale=False):
    """`first` challenged by `server` and answered by `client`."""
    return client.authorize(respond(first, 401, headers=server.challenge(first, now, stale)), first)


def test_every_phone_gets_a_challenge_it_knows():
    ((name, value),) = DigestServer("offhook").challenge(request(), 100.0)
    challenge = Challenge.parse(value)
    assert (name, challenge.algorithm, challenge.qop) == ("WWW-Authenticate", "MD5", ("auth",))


@pytest.mark.parametrize("algorithms", [BOTH, ("MD5",), ("SHA-256",)])
def test_who_knows_the_password_gets_in(algorithms):
    server = DigestServer("offhook", algorithms)
    first = request()
    assert server.check(first, PASSWORDS.get, 100.0) == Verdict(False)
    challenges = server.challenge(first, 100.0)
    assert [Challenge.parse(v).algorithm for _, v in challenges] == list(algorithms)
    again = asked(server, DigestClient("alice", "wonderland"), first, 100.0)
    assert server.check(again, PASSWORDS.get, 101.0) == Verdict(True, "alice")


@pytest.mark.parametrize(
    ("username", "password"),
    [("alice", "looking-glass"), ("mallory", "wonderland"), ("nobody", ""), ("", "")],
)
def test_who_does_not_know_it_stays_out(username, password):
    server = DigestServer("offhook", BOTH)
    again = asked(server, DigestClient(username, password), request(), 100.0)
    assert server.check(again, PASSWORDS.get, 100.0) == Verdict(False, username)


def test_credentials_for_somebody_else_are_not_taken_for_ours():
    server = DigestServer("offhook", BOTH)
    again = asked(server, DigestClient("alice", "wonderland"), request(), 100.0)
    other = answer(Challenge("elsewhere", "n", "MD5"), "REGISTER", "sip:x", "bob", "builder")
    again.headers.prepend("Authorization", other)
    assert server.claimed_username(again) == "alice"
    assert server.check(again, PASSWORDS.get, 100.0) == Verdict(True, "alice")
    assert server.claimed_username(request()) == ""


def test_an_unknown_user_costs_the_work_of_a_wrong_password(monkeypatch):
    server = DigestServer("offhook", BOTH)
    hashed = []
    real = module.expected_response
    monkeypatch.setattr(
        module, "expected_response", lambda *a: hashed.append(a[0].username) or real(*a)
    )
    for username in ("alice", "mallory"):
        again = asked(server, DigestClient(username, "?"), request(), 100.0)
        server.check(again, PASSWORDS.get, 100.0)
    assert hashed == ["alice", "mallory"]


def test_credentials_are_good_for_one_request_only():
    server = DigestServer("offhook", BOTH)
    again = asked(server, DigestClient("alice", "wonderland"), request(), 100.0)
    assert server.check(again, PASSWORDS.get, 100.0).ok
    assert server.check(again, PASSWORDS.get, 100.5) == Verdict(False, "alice", stale=True)
    old = parse_parameters(again.headers.get("Authorization"))[1]
    plain = answer(
        Challenge("offhook", old["nonce"], "MD5"),
        "REGISTER",
        "sip:example.com",
        "alice",
        "wonderland",
    )
    again.headers.set("Authorization", plain)
    assert server.check(again, PASSWORDS.get, 100.5).stale, "no count is a way round the count"


def test_a_response_without_qop_is_good_for_one_request():
    server = DigestServer("offhook", ("MD5",))
    nonce = Challenge.parse(server.challenge(request(), 100.0)[0][1]).nonce
    first = request()
    first.headers.add(
        "Authorization",
        answer(Challenge("offhook", nonce, "MD5"), "REGISTER", "sip:example.com", "bob", "builder"),
    )
    assert server.check(first, PASSWORDS.get, 100.0) == Verdict(True, "bob")
    assert server.check(first, PASSWORDS.get, 100.0) == Verdict(False, "bob", stale=True)


def test_nonce_counts_may_overtake_one_another_but_not_come_twice():
    server = DigestServer("offhook", BOTH)
    client = DigestClient("alice", "wonderland")
    requests = [asked(server, client, request(), 100.0)]
    for cseq in range(2, 102):
        requests.append(request(cseq=cseq))
        client.preempt(requests[-1])
    verdicts = {}
    for n in (0, 3, 1, 2, 100, 40, 30, 99, 100, 1):
        verdicts.setdefault(n, []).append(server.check(requests[n], PASSWORDS.get, 101.0).ok)
    assert verdicts == {
        0: [True], 3: [True], 1: [True, False], 2: [True], 100: [True, False],
        40: [True], 30: [False], 99: [True],
    }  # fmt: skip


def test_an_old_nonce_is_stale_and_the_client_goes_on_by_itself():
    server = DigestServer("offhook", BOTH, nonce_s=30)
    client = DigestClient("alice", "wonderland")
    again = asked(server, client, request(), 100.0)
    assert server.check(again, PASSWORDS.get, 100.0).ok
    later = request(cseq=5)
    client.preempt(later)
    verdict = server.check(later, PASSWORDS.get, 130.1)
    assert verdict == Verdict(False, "alice", stale=True)
    third = asked(server, client, later, 130.1, stale=True)
    assert server.check(third, PASSWORDS.get, 130.2).ok


@pytest.mark.parametrize("nonce", ["", "x", "é", "QUJD", "A" * 43 + "=", "A" * 5000])
def test_a_nonce_that_is_not_ours_is_stale_at_best(nonce):
    server = DigestServer("offhook", BOTH)
    first = request()
    if nonce:
        challenge = Challenge("offhook", nonce, "MD5", ("auth",))
        first.headers.add(
            "Authorization", answer(challenge, "REGISTER", "sip:example.com", "alice", "wonderland")
        )
    assert server.check(first, PASSWORDS.get, 100.0) == Verdict(
        False, "alice" if nonce else "", stale=bool(nonce)
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p | {"response": "é" * 32},
        lambda p: p | {"response": p["response"][:-1]},
        lambda p: p | {"response": ""},
        lambda p: p | {"nc": "00000002"},
        lambda p: p | {"uri": "sip:elsewhere.com"},
        lambda p: p | {"realm": "other"},
        lambda p: p | {"qop": "auth-int"},
        lambda p: p | {"algorithm": "SHA-512-256"},
        lambda p: p | {"algorithm": "MD5"},
        lambda p: {k: v for k, v in p.items() if k != "uri"},
    ],
)
def test_altered_credentials_are_refused(change):
    server = DigestServer("offhook", BOTH)
    again = asked(server, DigestClient("alice", "wonderland"), request(), 100.0)
    scheme, parameters = parse_parameters(again.headers.get("Authorization"))
    altered = ", ".join(f'{k}="{v}"' for k, v in change(parameters).items())
    again.headers.set("Authorization", f"{scheme} {altered}")
    assert not server.check(again, PASSWORDS.get, 100.0).ok


def test_a_quality_of_protection_that_was_not_offered_is_no_wrong_password():
    server = DigestServer("offhook")
    nonce = Challenge.parse(server.challenge(request(), 100.0)[0][1]).nonce
    challenge = Challenge("offhook", nonce, "MD5", ("auth-int",))
    first = request()
    value = answer(challenge, "REGISTER", "sip:example.com", "alice", "wonderland")
    first.headers.add("Authorization", value)
    assert server.check(first, PASSWORDS.get, 100.0) == Verdict(False)


@pytest.mark.parametrize("count", ["", "0", "00000000", "-1", "1_0", "٣", "zz", "1" * 5000])
def test_a_nonce_count_that_is_none_is_refused(count):
    server = DigestServer("offhook", ("MD5",))
    nonce = Challenge.parse(server.challenge(request(), 100.0)[0][1]).nonce
    made = Credentials("alice", "offhook", "sip:example.com", nonce, "", "MD5", "auth", count, "c")
    response = expected_response(made, "REGISTER", "wonderland")
    first = request()
    first.headers.add(
        "Authorization",
        f'Digest username="alice", realm="offhook", uri="sip:example.com", nonce="{nonce}", '
        f'response="{response}", algorithm=MD5, qop=auth, nc="{count}", cnonce="c"',
    )
    assert server.check(first, PASSWORDS.get, 100.0) == Verdict(False, "alice", stale=True)


def test_nonces_in_use_are_bounded_and_those_forgotten_cannot_be_used_again(monkeypatch):
    monkeypatch.setattr(module, "MAX_NONCES", 10)
    server = DigestServer("offhook", BOTH)
    used = []
    for number in range(50):
        now = 100.0 + number / 10
        used.append(asked(server, DigestClient("alice", "wonderland"), request(), now))
        assert server.check(used[-1], PASSWORDS.get, now).ok
    assert len(server._used) == 10
    assert not any(server.check(old, PASSWORDS.get, 105.0).ok for old in used)
