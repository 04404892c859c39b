"""Whose place it is, and how many one may have."""

import pytest

from offhook.web.http.networks import ip_network
from offhook.web.http.shares import (
    NOBODY,
    Holder,
    ShareExceeded,
    Shares,
    by_address,
    caller_address,
    waiting_is_full,
    waits_too_often,
)

INGRESS = (ip_network("10.0.0.0/8"),)


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "caller"),
    [
        ("203.0.113.9", [], "203.0.113.9"),
        ("203.0.113.9", ["198.51.100.7"], "203.0.113.9"),  # no proxy: it says what it likes
        ("127.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("127.0.0.1", ["198.51.100.7, 203.0.113.9"], "203.0.113.9"),
        ("127.0.0.1", ["198.51.100.7", "203.0.113.9"], "203.0.113.9"),  # two headers
        ("10.1.2.3", ["203.0.113.9"], "203.0.113.9"),
        ("10.1.2.3", ["198.51.100.7, 203.0.113.9, 10.9.9.9"], "203.0.113.9"),
        ("::ffff:10.1.2.3", ["203.0.113.9:4711"], "203.0.113.9"),
        ("127.0.0.1", ["[2001:db8::1]:443"], "2001:db8::1"),
        ("10.1.2.3", [], ""),
        ("10.1.2.3", ["unknown"], ""),
        ("127.0.0.1", [], ""),
        ("", ["203.0.113.9"], "203.0.113.9"),  # a Unix socket's
        ("", [], ""),
    ],
)
def test_the_caller_is_whom_the_nearest_stranger_is(
    peer: str, forwarded_for: list[str], caller: str
) -> None:
    assert caller_address(peer, forwarded_for, INGRESS) == caller


def test_an_address_is_a_holder_and_this_machine_is_none() -> None:
    assert by_address("127.0.0.1") == by_address("::1") == by_address("") == NOBODY
    assert by_address("::ffff:203.0.113.9") == by_address("203.0.113.9")
    assert by_address("2001:db8::1") == by_address("2001:db8::ffff:1")
    assert by_address("2001:db8::1") != by_address("2001:db8:0:1::1")


def test_a_share_is_of_the_places_and_two_at_least() -> None:
    shares, one = Shares(0.5, 0.25), by_address("203.0.113.9")
    shares.check(one, [one] * 9, 20, "lines")
    with pytest.raises(ShareExceeded, match=r"203.0.113.9 has 10 of 20 lines, .* share_per_addr"):
        shares.check(one, [one] * 10, 20, "lines")
    shares.check(by_address("203.0.113.8"), [one] * 20, 20, "lines")
    shares.check(NOBODY, [NOBODY] * 20, 20, "lines")
    shares.check(one, [one], 1, "lines")
    key = frozenset((Holder("key", "bot"),))
    with pytest.raises(ShareExceeded, match=r"the key 'bot' has 5 of 20 lines, .* share_per_key"):
        shares.check(key, [key] * 5, 20, "lines")


def test_a_secret_has_a_limit_of_its_own() -> None:
    secret = frozenset((Holder("secret", "1", 3),))
    Shares().check(secret, [secret] * 2, 200, "lines")
    with pytest.raises(ShareExceeded, match=r"has 3 lines open.*max_sessions"):
        Shares().check(secret, [secret | by_address("203.0.113.9")] * 3, 200, "lines")


def test_half_of_the_places_may_wait_and_half_of_that_for_an_address() -> None:
    one, other = by_address("203.0.113.9"), by_address("203.0.113.8")
    assert not waiting_is_full(9, 20)
    assert waiting_is_full(10, 20)
    assert not waits_too_often(one, [one] * 4 + [other] * 5, 20)
    assert waits_too_often(one, [one] * 5, 20)
    assert not waits_too_often(NOBODY, [NOBODY] * 9, 20)
