"""SRTP with given keys: what authenticates and what does not."""

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.media.sdes import SUITES
from offhook.telephony.sip.media.srtp import MAX_SSRCS, SdesSrtp, SrtpError

SUITE = "AES_CM_128_HMAC_SHA1_80"
SUITE_TAGS = {
    suite: 0 if "GCM" in suite else 4 if suite.endswith("_32") else 10 for suite in SUITES
}
"""Bytes of the tag that is no part of the ciphertext."""
every_suite = pytest.mark.parametrize("suite", SUITES)


def rtp(number, ssrc=1):
    return struct.pack("!BBHII", 0x80, 0, number, number * 160, ssrc) + b"\x55" * 160


def report(ssrc=1):
    return struct.pack("!BBHI", 0x80, 201, 1, ssrc)


def key(suite=SUITE):
    return os.urandom(SUITES[suite])


def pair(suite=SUITE):
    ours, theirs = key(suite), key(suite)
    return SdesSrtp(suite, ours, theirs), SdesSrtp(suite, theirs, ours)


@every_suite
def test_both_ends_understand_each_other(suite):
    a, b = pair(suite)
    for number in range(5):
        for one, other in ((a, b), (b, a)):
            protected = one.protect(rtp(number))
            assert rtp(number)[12:] not in protected
            assert protected[:12] == rtp(number)[:12]
            assert other.unprotect(protected) == rtp(number)
            assert other.unprotect_rtcp(one.protect_rtcp(report())) == report()


@pytest.mark.parametrize(
    ("suite", "tag", "rtcp_tag"),
    [
        ("AES_CM_128_HMAC_SHA1_80", 10, 10),
        ("AES_CM_128_HMAC_SHA1_32", 4, 10),  # reports keep the long tag (RFC 4568 §6.2.2)
        ("AEAD_AES_128_GCM", 16, 16),
        ("AEAD_AES_256_GCM", 16, 16),
        ("AES_256_CM_HMAC_SHA1_80", 10, 10),
        ("AES_256_CM_HMAC_SHA1_32", 4, 10),
    ],
)
def test_each_suite_has_its_length_of_tag(suite, tag, rtcp_tag):
    a, _ = pair(suite)
    assert len(a.protect(rtp(1))) == len(rtp(1)) + tag
    assert len(a.protect_rtcp(report())) == len(report()) + rtcp_tag + 4


MKI = b"\x00\x07"


@every_suite
def test_packets_bear_the_mki_of_their_sender_alone(suite):
    ours, theirs = key(suite), key(suite)
    a = SdesSrtp(suite, ours, theirs, MKI, b"")
    b = SdesSrtp(suite, theirs, ours, b"", MKI)
    for number in range(3):
        protected = a.protect(rtp(number))
        assert b.unprotect(protected) == rtp(number)
        assert a.unprotect(b.protect(rtp(number))) == rtp(number)
        assert b.unprotect_rtcp(a.protect_rtcp(report())) == report()
        assert a.unprotect_rtcp(b.protect_rtcp(report())) == report()
    plain, tag = SdesSrtp(suite, ours, theirs).protect(rtp(2)), SUITE_TAGS[suite]
    end = len(plain) - tag
    assert protected == plain[:end] + MKI + plain[end:]  # RFC 3711 §3.1, RFC 7714 §8.2


@every_suite
def test_a_packet_without_the_mki_or_with_another_is_refused(suite):
    ours, theirs = key(suite), key(suite)
    b = SdesSrtp(suite, theirs, ours, b"", MKI)
    for mki in (b"", b"\x00\x08"):
        a = SdesSrtp(suite, ours, theirs, mki)
        with pytest.raises(SrtpError, match="MKI"):
            b.unprotect(a.protect(rtp(1)))
        with pytest.raises(SrtpError, match="MKI"):
            b.unprotect_rtcp(a.protect_rtcp(report()))
    for short in (b"", MKI, bytes(12)):
        with pytest.raises(SrtpError):
            b.unprotect(short)
        with pytest.raises(SrtpError):
            b.unprotect_rtcp(short)


@pytest.mark.parametrize("bits", [128, 256])
def test_the_session_keys_are_those_of_the_standard(bits):
    """RFC 3711 B.3 and RFC 6188 §7.4 print them. What libsrtp derives cannot be had from outside,
    so whole packets are held against an independent AES and HMAC."""
    import hmac

    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    vectors = {
        128: (
            "E1F97A0D3E018BE0D64FA32C06DE4139",
            "0EC675AD498AFEEBB6960B3AABE6",
            "C61E7A93744F39EE10734AFE3FF7A087",
        ),
        256: (
            "F0F04914B513F2763A1B1FA130F10E2998F6F6E43E4309D1E622A0E332B9F1B6",
            "3B04803DE51EE7C96423AB5B78D2",
            "5BA1064E30EC51613CAD926C5A28EF731EC7FB397F70A960653CAF06554CD8C4",
        ),
    }
    master, salt, derived = map(bytes.fromhex, vectors[bits])

    def aes_ctr(aes_key, counter, size):
        encryptor = Cipher(algorithms.AES(aes_key), modes.CTR(counter)).encryptor()
        return encryptor.update(bytes(size))

    def derive(label, size):
        x = int.from_bytes(salt, "big") ^ label << 48
        return aes_ctr(master, (x << 16).to_bytes(16, "big"), size)

    cipher_key, auth_key, session_salt = derive(0, bits // 8), derive(1, 20), derive(2, 14)
    assert cipher_key == derived
    packet = rtp(1000, ssrc=0xDEADBEEF)
    iv = int.from_bytes(session_salt, "big") << 16 ^ 0xDEADBEEF << 64 ^ 1000 << 16
    stream = aes_ctr(cipher_key, iv.to_bytes(16, "big"), len(packet) - 12)
    body = packet[:12] + bytes(a ^ b for a, b in zip(packet[12:], stream, strict=True))
    tag = hmac.digest(auth_key, body + bytes(4), "sha1")
    for suite in SUITES:
        if len(master + salt) == SUITES[suite] and "HMAC" in suite:
            sent = SdesSrtp(suite, master + salt, key(suite)).protect(packet)
            assert sent == body + tag[: SUITE_TAGS[suite]], suite


def test_a_stream_that_begins_anew_under_its_key_is_told_from_another_key():
    a, b = pair()
    stranger, _ = pair()
    for number in range(1000, 1100):
        b.unprotect(a.protect(rtp(number)))
    again = SdesSrtp(SUITE, a._local_key, a._remote_key).protect(rtp(7))
    for packet, restarted in ((again, True), (stranger.protect(rtp(7)), False)):
        with pytest.raises(SrtpError):
            b.unprotect(packet)
        assert b.has_restarted(packet) is restarted


@every_suite
def test_what_was_changed_or_repeated_or_made_with_another_key_is_refused(suite):
    a, b = pair(suite)
    stranger, _ = pair(suite)
    good = a.protect(rtp(1))
    for index in (1, 5, 20, len(good) - 1):
        bad = bytearray(good)
        bad[index] ^= 1
        with pytest.raises(SrtpError):
            b.unprotect(bytes(bad))
    with pytest.raises(SrtpError):
        b.unprotect(stranger.protect(rtp(1)))
    with pytest.raises(SrtpError):
        b.unprotect(rtp(1))
    assert b.unprotect(good) == rtp(1)
    with pytest.raises(SrtpError):
        b.unprotect(good)
    reported = a.protect_rtcp(report())
    assert b.unprotect_rtcp(reported) == report()
    with pytest.raises(SrtpError):
        b.unprotect_rtcp(reported)


@given(st.binary(max_size=1600))
def test_whatever_comes_it_is_an_srtp_error(data):
    _, b = pair()
    for unprotect in (b.unprotect, b.unprotect_rtcp):
        with pytest.raises(SrtpError):
            unprotect(data)


def test_a_packet_too_long_to_protect_is_an_srtp_error():
    a, _ = pair()
    for protect in (a.protect, a.protect_rtcp):
        with pytest.raises(SrtpError):
            protect(rtp(1) + bytes(1500))


def test_sequence_numbers_wrap():
    a, b = pair()
    for number in (*range(65_500, 65_536), *range(50)):
        assert b.unprotect(a.protect(rtp(number))) == rtp(number)


def test_a_far_end_may_use_only_so_many_ssrcs():
    a, b = pair()
    for ssrc in range(MAX_SSRCS):
        b.unprotect(a.protect(rtp(1, ssrc)))
    with pytest.raises(SrtpError, match="SSRC"):
        b.unprotect(a.protect(rtp(1, MAX_SSRCS)))
    assert b.unprotect(a.protect(rtp(2, 0))) == rtp(2, 0)


def test_strangers_use_up_none_of_them():
    a, b = pair()
    stranger, _ = pair()
    for ssrc in range(MAX_SSRCS + 10):
        with pytest.raises(SrtpError):
            b.unprotect(stranger.protect(rtp(1, ssrc)))
    assert b.unprotect(a.protect(rtp(1))) == rtp(1)


def test_a_direction_whose_key_stays_goes_on_where_it_was():
    """After a wrap the packets before and after it differ by the rollover counter alone: an end
    that began anew would encrypt with the same keystream again."""
    ours, theirs, new = key(), key(), key()
    a, b = SdesSrtp(SUITE, ours, theirs), SdesSrtp(SUITE, theirs, ours)
    first = a.protect(rtp(65_000))
    b.unprotect(first)
    for number in (65_500, 100, 1000):
        b.unprotect(a.protect(rtp(number)))
    a2, b2 = a.renewed(SUITE, ours, new), b.renewed(SUITE, new, ours)
    for number in (30_000, 60_000, 65_000):
        protected = a2.protect(rtp(number))
        assert b2.unprotect(protected) == rtp(number)
    assert protected != first
    with pytest.raises(SrtpError):
        b2.unprotect(first)
    assert a2.unprotect(b2.protect(rtp(1))) == rtp(1)
    with pytest.raises(SrtpError):
        a2.unprotect(b.protect(rtp(2)))  # the key it had


def test_a_new_suite_is_new_in_both_directions():
    ours, theirs = key(), key()
    a = SdesSrtp("AES_CM_128_HMAC_SHA1_80", ours, theirs)
    a.protect(rtp(1))
    a2 = a.renewed("AES_CM_128_HMAC_SHA1_32", ours, theirs)
    b2 = SdesSrtp("AES_CM_128_HMAC_SHA1_32", theirs, ours)
    assert b2.unprotect(a2.protect(rtp(2))) == rtp(2)


def test_keys_must_fit_their_suite_and_are_not_shown():
    with pytest.raises(SrtpError, match="30 bytes"):
        SdesSrtp(SUITE, b"short", key())
    with pytest.raises(SrtpError, match="30 bytes"):
        SdesSrtp(SUITE, key(), bytes(44))
    with pytest.raises(SrtpError, match="not supported"):
        SdesSrtp("F8_128_HMAC_SHA1_80", key(), key())
    ours = key()
    assert repr(ours)[2:10] not in repr(SdesSrtp(SUITE, ours, key()))
