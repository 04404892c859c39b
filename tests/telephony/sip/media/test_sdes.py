from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.media.sdes import (
    SUITES,
    Crypto,
    first_supported,
    make_offer,
    parse_crypto,
)

SUITE = "AES_CM_128_HMAC_SHA1_80"
KEY = bytes(range(30))
INLINE = "inline:" + b64encode(KEY).decode()


@pytest.mark.parametrize(
    ("suite", "size"),
    [
        ("AES_CM_128_HMAC_SHA1_80", 30),
        ("AES_CM_128_HMAC_SHA1_32", 30),
        ("AEAD_AES_128_GCM", 28),
        ("AEAD_AES_256_GCM", 44),
        ("AES_256_CM_HMAC_SHA1_80", 46),
        ("AES_256_CM_HMAC_SHA1_32", 46),
        ("AES_CM_256_HMAC_SHA1_80", 46),
        ("AES_CM_256_HMAC_SHA1_32", 46),
    ],
)
def test_every_suite_is_read_and_written(suite: str, size: int) -> None:
    crypto = Crypto(7, suite, bytes(size))
    assert parse_crypto(str(crypto)) == crypto
    assert parse_crypto(str(crypto).rstrip("=")) == crypto
    assert parse_crypto(str(Crypto(7, suite, bytes(size + 1)))) is None


@pytest.mark.parametrize(
    "value",
    [
        f"3 {SUITE} {INLINE}",
        f"3  {SUITE.lower()}  {INLINE.replace('inline', 'INLINE')} ",
        f"3 {SUITE} {INLINE}|2^20",
        f"3 {SUITE} {INLINE}|1048576",
        f"3 {SUITE} {INLINE} WSH=256",
        f"3 {SUITE} {INLINE} -X-OWN=1 wsh=64",
    ],
)
def test_lines_that_mean_one_key_and_nothing_else_are_taken(value: str) -> None:
    assert parse_crypto(value) == Crypto(3, SUITE, KEY)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "3",
        f"3 {SUITE}",
        f"x {SUITE} {INLINE}",
        f"{'1' * 10} {SUITE} {INLINE}",
        f"٣ {SUITE} {INLINE}",
        f"3 AES_256_CM_HMAC_SHA1_80 {INLINE}",
        f"3 F8_128_HMAC_SHA1_80 {INLINE}",
        f"3 {SUITE} {INLINE}|1:0",
        f"3 {SUITE} {INLINE}|1:129",
        f"3 {SUITE} {INLINE}|256:1",
        f"3 {SUITE} {INLINE}|x:1",
        f"3 {SUITE} {INLINE}|1:4|2^20",
        f"3 {SUITE} {INLINE}|2^20|1:4|1:4",
        f"3 {SUITE} {INLINE}|1:4;{INLINE}|2:4",
        f"3 {SUITE} {INLINE}|2^x",
        f"3 {SUITE} {INLINE}|2^20|2^20",
        f"3 {SUITE} {INLINE.replace('A', '!A', 1)}",
        f"3 {SUITE} {INLINE};{INLINE}",
        f"3 {SUITE} {INLINE[:-4]}",
        f"3 {SUITE} {INLINE}AAAA",
        f"3 {SUITE} inline:{'!' * 40}",
        f"3 {SUITE} inline:{'é' * 40}",
        f"3 {SUITE} uri:{INLINE[7:]}",
        f"3 {SUITE} {INLINE} KDR=1",
        f"3 {SUITE} {INLINE} UNENCRYPTED_SRTP",
        f"3 {SUITE} {INLINE} UNAUTHENTICATED_SRTP",
        f"3 {SUITE} {INLINE} WSH=64 FEC_ORDER=FEC_SRTP",
        f"3 {SUITE} {INLINE} X-NEW",
    ],
)
def test_lines_that_ask_for_what_we_do_not_do_are_passed_over(value: str) -> None:
    assert parse_crypto(value) is None


@pytest.mark.parametrize(
    ("text", "mki"),
    [
        ("|1:1", b"\x01"),
        ("|1:4", b"\0\0\0\x01"),
        ("|2^20|258:4", b"\0\0\x01\x02"),
        ("|2^31|1:1", b"\x01"),
        (f"|{(1 << 1024) - 1}:128", b"\xff" * 128),
    ],
)
def test_a_master_key_identifier_is_read_and_written(text: str, mki: bytes) -> None:
    crypto = parse_crypto(f"3 {SUITE} {INLINE}{text}")
    assert crypto == Crypto(3, SUITE, KEY, mki)
    assert str(crypto) == f"3 {SUITE} {INLINE}|{text.rpartition('|')[2]}"


def test_the_first_line_we_can_do_is_taken() -> None:
    values = [
        f"1 AES_256_CM_HMAC_SHA1_80 {INLINE}",
        f"2 {SUITE} {INLINE};{INLINE}",
        f"3 {SUITE} {INLINE}",
    ]
    assert first_supported(values) == Crypto(3, SUITE, KEY)
    assert first_supported(values[:2]) is None


def test_each_offered_line_has_a_tag_and_a_key_of_its_own() -> None:
    made = iter(range(100))
    offered = make_offer(lambda size: bytes([next(made)]) * size)
    assert [crypto.tag for crypto in offered] == [1, 2, 3]
    assert len({crypto.key for crypto in offered}) == 3
    assert offered[0].suite == SUITE
    assert all(len(crypto.key) == SUITES[crypto.suite] for crypto in offered)


def test_a_key_is_not_shown() -> None:
    assert repr(Crypto(1, SUITE, b"secret")) == f"Crypto(tag=1, suite='{SUITE}')"


@given(
    st.text(max_size=80) | st.lists(st.sampled_from(["1", SUITE, INLINE, "|", " "])).map("".join)
)
def test_any_line_is_read_or_passed_over(value: str) -> None:
    crypto = parse_crypto(value)
    assert crypto is None or parse_crypto(str(crypto)) == crypto
