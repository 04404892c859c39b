from collections.abc import Sequence
from dataclasses import replace

import pytest

from offhook.telephony.sip.media.offer_answer import (
    Dtls,
    MediaNegotiation,
    MediaSettings,
    NotAcceptable,
    Sdes,
)
from offhook.telephony.sip.media.sdes import parse_crypto
from tests.telephony.sip.descriptions import (
    CRYPTO,
    DTLS_OFFER,
    FINGERPRINT,
    KEY,
    KEY2,
    OTHER_FINGERPRINT,
    PLAIN,
    SECURE,
    answer,
    end,
    inline,
    sdp,
    sound,
)


def key_in(text: str) -> bytes:
    crypto = parse_crypto(sound(text).attribute("crypto") or "")
    assert crypto is not None
    return crypto.key


# --- by keys in the description ---


@pytest.mark.parametrize("protocol", ["RTP/SAVP", "RTP/SAVPF", "RTP/AVP", "RTP/AVPF"])
@pytest.mark.parametrize("srtp", ["optional", "required"])
def test_offered_keys_are_taken_and_answered_with_ours(srtp: str, protocol: str) -> None:
    us = end(MediaSettings(srtp=srtp))
    text = us.answer(sdp(f"m=audio 5000 {protocol} 0", CRYPTO))
    assert us.plan is not None
    assert us.plan.security == Sdes(1, "AES_CM_128_HMAC_SHA1_80", bytes([100]) * 30, KEY)
    assert sound(text).protocol == protocol
    assert key_in(text) == bytes([100]) * 30


@pytest.mark.parametrize("protocol", ["RTP/AVP", "RTP/AVPF"])
def test_profiles_without_srtp_are_answered_alike(protocol: str) -> None:
    us = end(MediaSettings())
    assert sound(us.answer(sdp(f"m=audio 5000 {protocol} 0"))).protocol == protocol
    assert us.plan is not None
    assert us.plan.security is None


def test_the_first_usable_key_is_answered_with_its_tag() -> None:
    us = end(SECURE)
    text = us.answer(
        sdp(
            "m=audio 5000 RTP/SAVP 0",
            f"a=crypto:1 F8_128_HMAC_SHA1_80 {inline(KEY)}",
            f"a=crypto:2 AES_CM_128_HMAC_SHA1_80 {inline(KEY)}|1:1;{inline(KEY)}|2:1",
            f"a=crypto:3 AES_CM_128_HMAC_SHA1_80 {inline(KEY)} UNENCRYPTED_SRTP",
            f"a=crypto:4 AEAD_AES_128_GCM {inline(bytes(28))}|2^31",
            f"a=crypto:5 AES_CM_128_HMAC_SHA1_80 {inline(KEY)}",
        )
    )
    assert us.plan is not None
    security = us.plan.security
    assert isinstance(security, Sdes)
    assert (security.tag, security.suite) == (4, "AEAD_AES_128_GCM")
    assert [value[:2] for value in sound(text).attribute_values("crypto")] == ["4 "]


@pytest.mark.parametrize(
    ("srtp", "lines"),
    [
        ("off", ("m=audio 5000 RTP/SAVP 0", CRYPTO)),
        ("off", ("m=audio 5000 UDP/TLS/RTP/SAVP 0", f"a=fingerprint:{FINGERPRINT}")),
        ("optional", ("m=audio 5000 RTP/SAVP 0",)),
        ("optional", ("m=audio 5000 RTP/SAVP 0", "a=crypto:1 X inline:x")),
        ("optional", ("m=audio 5000 UDP/TLS/RTP/SAVP 0", CRYPTO)),
        ("required", ("m=audio 5000 RTP/AVP 0",)),
        ("required", ("m=audio 5000 RTP/AVP 0", "a=crypto:1 X inline:x")),
    ],
)
def test_protection_only_one_side_wants_is_no_call(srtp: str, lines: Sequence[str]) -> None:
    with pytest.raises(NotAcceptable) as refused:
        end(MediaSettings(srtp=srtp), FINGERPRINT).answer(sdp(*lines))
    assert refused.value.warning.startswith("302 ")


@pytest.mark.parametrize("line", [PLAIN, MediaSettings()])
def test_a_key_we_cannot_use_in_a_plain_profile_is_passed_over(line: MediaSettings) -> None:
    lines = ("m=audio 5000 RTP/AVP 0", "a=crypto:1 X inline:x" if line.srtp != "off" else CRYPTO)
    us = end(line)
    assert "crypto" not in us.answer(sdp(*lines))
    assert us.plan is not None
    assert us.plan.security is None


def test_of_the_same_sound_plain_and_protected_the_protected_is_taken() -> None:
    lines = ("m=audio 5000 RTP/AVP 0", "m=audio 5002 RTP/SAVP 0", CRYPTO)
    assert answer(end(MediaSettings()), *lines).remote[1] == 5002
    assert answer(end(SECURE), *lines).remote[1] == 5002
    assert answer(end(PLAIN), *lines).remote[1] == 5000
    unusable = (*lines[:2], "a=crypto:1 X inline:x")
    assert answer(end(MediaSettings()), *unusable).remote[1] == 5000


def test_what_we_offer_says_how_much_srtp_matters() -> None:
    assert "crypto" not in end(PLAIN).offer()
    optional, required = sound(end(MediaSettings()).offer()), sound(end(SECURE).offer())
    assert (optional.protocol, required.protocol) == ("RTP/AVP", "RTP/SAVP")
    assert len(optional.attribute_values("crypto")) == 1
    assert len(required.attribute_values("crypto")) == 3
    assert optional.attribute_values("crypto") == required.attribute_values("crypto")[:1]


@pytest.mark.parametrize("tag", [3, 1])
def test_the_answers_suite_tells_which_of_our_keys_counts(tag: int) -> None:
    us = end(SECURE)
    us.offer()
    crypto = f"a=crypto:{tag} AES_CM_128_HMAC_SHA1_32 {inline(KEY)}"
    plan = us.accept(sdp("m=audio 5000 RTP/SAVP 0", crypto))
    assert plan.security == Sdes(3, "AES_CM_128_HMAC_SHA1_32", bytes([102]) * 30, KEY)


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        (SECURE, ("m=audio 5000 RTP/SAVP 0",)),
        (SECURE, ("m=audio 5000 RTP/AVP 0",)),
        (SECURE, ("m=audio 5000 RTP/SAVP 0", f"a=crypto:9 AEAD_AES_128_GCM {inline(bytes(28))}")),
        (MediaSettings(), ("m=audio 5000 RTP/SAVP 0",)),
        (PLAIN, ("m=audio 5000 RTP/SAVP 0", CRYPTO)),
    ],
)
def test_answers_without_the_protection_that_must_be_are_refused(
    line: MediaSettings, lines: Sequence[str]
) -> None:
    us = end(line)
    us.offer()
    with pytest.raises(NotAcceptable):
        us.accept(sdp(*lines))


def test_keys_stay_while_theirs_stay_and_change_with_theirs() -> None:
    us = end(MediaSettings())
    first = answer(us, "m=audio 5000 RTP/SAVP 0", CRYPTO).security
    held = answer(us, "m=audio 5000 RTP/SAVP 0", "a=sendonly", CRYPTO).security
    assert held == first
    text = us.answer(sdp("m=audio 5000 RTP/SAVP 0", CRYPTO.replace(inline(KEY), inline(KEY2))))
    assert us.plan is not None
    second = us.plan.security
    assert isinstance(first, Sdes)
    assert isinstance(second, Sdes)
    assert second.remote_key == KEY2
    assert second.local_key == key_in(text) != first.local_key
    third = answer(us, "m=audio 5000 RTP/SAVP 0", CRYPTO.replace(":1 ", ":2 ")).security
    assert isinstance(third, Sdes)
    assert third.tag == 2
    assert third.local_key not in (first.local_key, second.local_key)


def test_our_next_offer_after_answering_keeps_key_tag_and_profile() -> None:
    us = end(MediaSettings())
    text = us.answer(sdp("m=audio 5000 RTP/SAVPF 0", CRYPTO.replace(":1 ", ":5 ")))
    again = sound(us.offer("sendonly"))
    assert again.protocol == "RTP/SAVPF"
    assert again.attribute_values("crypto") == sound(text).attribute_values("crypto")


def test_a_new_key_in_an_answer_is_a_new_security() -> None:
    us = end(SECURE)
    us.offer()
    first = us.accept(sdp("m=audio 5000 RTP/SAVP 0", CRYPTO)).security
    us.offer("sendonly")
    crypto = CRYPTO.replace(inline(KEY), inline(KEY2))
    second = us.accept(sdp("m=audio 5000 RTP/SAVP 0", crypto)).security
    assert isinstance(first, Sdes)
    assert second == replace(first, remote_key=KEY2)


def test_keys_are_not_shown() -> None:
    plan = answer(end(SECURE), "m=audio 5000 RTP/SAVP 0", CRYPTO)
    assert "Sdes(tag=1, suite='AES_CM_128_HMAC_SHA1_80')" in repr(plan)


# --- by a DTLS handshake ---

THEIR_FINGERPRINTS = (("sha-256", OTHER_FINGERPRINT.split()[1]),)


@pytest.mark.parametrize(
    ("setup", "role", "answered"),
    [
        ("a=setup:actpass", "server", "passive"),
        ("a=setup:active", "server", "passive"),
        ("a=setup:passive", "client", "active"),
        ("a=x", "server", "passive"),
    ],
)
def test_who_starts_the_handshake(setup: str, role: str, answered: str) -> None:
    us = end(MediaSettings(), FINGERPRINT)
    text = us.answer(sdp(*DTLS_OFFER, setup))
    assert us.plan is not None
    assert us.plan.security == Dtls(THEIR_FINGERPRINTS, role)
    media = sound(text)
    assert (media.setup, media.protocol) == (answered, "UDP/TLS/RTP/SAVP")
    assert media.attribute("fingerprint") == FINGERPRINT


@pytest.mark.parametrize(
    ("ours", "theirs", "role"),
    [
        ("8.8.8.8", "10.0.0.7", "server"),
        ("8.8.8.8", "9.9.9.9", "server"),
        ("10.0.0.8", "10.0.0.7", "server"),
        ("10.0.0.8", "9.9.9.9", "client"),
    ],
)
def test_whoever_is_behind_a_nat_starts_the_handshake(ours: str, theirs: str, role: str) -> None:
    us = MediaNegotiation(MediaSettings(), ours, 4000, 4001, 1, FINGERPRINT)
    plan = answer(us, *DTLS_OFFER, "a=setup:actpass", address=theirs)
    assert plan.security == Dtls(THEIR_FINGERPRINTS, role)


@pytest.mark.parametrize(
    ("line", "ours", "lines"),
    [
        (MediaSettings(), "", (*DTLS_OFFER, "a=setup:actpass")),
        (MediaSettings(dtls=False), FINGERPRINT, (*DTLS_OFFER, "a=setup:actpass")),
        (MediaSettings(), FINGERPRINT, (*DTLS_OFFER, "a=setup:holdconn")),
        (MediaSettings(), FINGERPRINT, (DTLS_OFFER[0], "a=setup:actpass")),
        (MediaSettings(), FINGERPRINT, (DTLS_OFFER[0], "a=fingerprint:md5 A1:A1")),
        (MediaSettings(), FINGERPRINT, (DTLS_OFFER[0], "a=fingerprint:sha-256 A1:A1")),
        (MediaSettings(), FINGERPRINT, (DTLS_OFFER[0], f"a=fingerprint:{FINGERPRINT[:-2]}X1")),
    ],
)
def test_handshakes_that_cannot_be_are_refused(
    line: MediaSettings, ours: str, lines: Sequence[str]
) -> None:
    with pytest.raises(NotAcceptable):
        end(line, ours).answer(sdp(*lines))


@pytest.mark.parametrize(
    ("function", "size"), [("sha-1", 20), ("SHA-256", 32), ("sha-384", 48), ("sha-512", 64)]
)
def test_fingerprints_by_every_hash_but_the_broken_ones(function: str, size: int) -> None:
    digest = ":".join(["0a"] * size)
    lines = (DTLS_OFFER[0], f"a=fingerprint:md5 {digest}", f"a=fingerprint:{function}  {digest}")
    plan = answer(end(MediaSettings(), FINGERPRINT), *lines, "a=setup:actpass")
    assert plan.security == Dtls(((function.lower(), digest.upper()),), "server")


def test_of_key_and_certificate_the_certificate_is_taken() -> None:
    lines = ("m=audio 5000 RTP/AVP 0", CRYPTO, DTLS_OFFER[1], "a=setup:actpass")
    us = end(MediaSettings(), FINGERPRINT)
    assert "crypto" not in us.answer(sdp(*lines))
    assert us.plan is not None
    assert isinstance(us.plan.security, Dtls)
    assert isinstance(answer(end(MediaSettings()), *lines).security, Sdes)


def test_an_association_goes_on_through_offers_of_both_sides() -> None:
    us = end(MediaSettings(), FINGERPRINT)
    first = answer(us, *DTLS_OFFER, "a=setup:passive").security
    assert answer(us, *DTLS_OFFER, "a=setup:actpass", "a=sendonly").security == first
    media = sound(us.offer())
    assert (media.protocol, media.setup) == ("UDP/TLS/RTP/SAVP", "active")
    assert media.attribute("fingerprint") == FINGERPRINT
    assert us.accept(sdp(*DTLS_OFFER, "a=setup:passive")).security == first
    with pytest.raises(NotAcceptable):
        us.accept(sdp(DTLS_OFFER[0]))


def test_another_certificate_is_another_association() -> None:
    us = end(MediaSettings(), FINGERPRINT)
    first = answer(us, *DTLS_OFFER, "a=setup:passive").security
    changed = DTLS_OFFER[1].replace("B2", "C3")
    second = answer(us, DTLS_OFFER[0], changed, "a=setup:actpass").security
    assert isinstance(second, Dtls)
    assert second != first
    assert second.role == "server"
