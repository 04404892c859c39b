"""One noisy source is not heard, many made-up ones fill nothing, and trunks are never limited."""

import random
import socket
import time
import tracemalloc

import pytest

from offhook.telephony.sip.admission import rate_limiter as module
from offhook.telephony.sip.admission.rate_limiter import RateLimiter, Verdict
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk

PASS, LIMIT, DROP = Verdict.PASS, Verdict.LIMIT, Verdict.DROP
SETTINGS = SipSettings(requests_per_second=20, invites_per_second=5)


def spend(sources, source, kind, count, now=0.0):
    return [sources.check(source, kind, now) for _ in range(count)]


def test_a_burst_is_let_through_then_refused_then_not_answered():
    assert (
        spend(RateLimiter(SETTINGS), "10.0.0.1", "request", 70)
        == [PASS] * 60 + [LIMIT] + [DROP] * 9
    )


def test_invites_without_proof_have_a_smaller_bucket_of_their_own():
    sources = RateLimiter(SETTINGS)
    assert spend(sources, "10.0.0.1", "invite", 20) == [PASS] * 15 + [LIMIT] + [DROP] * 4
    assert sources.check("10.0.0.1", "request", 0.0) is PASS


def test_in_the_long_run_a_source_gets_its_rate():
    sources = RateLimiter(SETTINGS)
    passed = sum(sources.check("10.0.0.1", "invite", n / 100) is PASS for n in range(6000))
    assert passed == pytest.approx(60 * 5 + 15, abs=2)


def test_refusals_are_few_however_much_comes():
    sources = RateLimiter(SETTINGS)
    verdicts = [sources.check("10.0.0.1", "request", n / 1000) for n in range(60_000)]
    assert verdicts.count(LIMIT) <= 60 * module.ANSWERS_PER_SECOND + 1
    assert verdicts.count(LIMIT) >= 50


def test_one_source_does_not_take_anothers_share():
    sources = RateLimiter(SETTINGS)
    spend(sources, "10.0.0.1", "request", 100)
    assert sources.check("10.0.0.2", "request", 0.0) is PASS


def test_an_ipv6_source_is_a_64():
    sources = RateLimiter(SETTINGS)
    verdicts = [sources.check(f"2001:db8::{n:x}", "request", 0.0) for n in range(1, 70)]
    assert verdicts.count(PASS) == 60
    assert sources.check("2001:db8:0:1::1", "request", 0.0) is PASS
    assert sources.check("::ffff:10.0.0.1", "request", 0.0) is PASS
    spend(sources, "10.0.0.1", "request", 100)
    assert sources.check("::ffff:10.0.0.1", "request", 0.0) is not PASS, "the same IPv4 source"


def test_a_rate_under_one_lets_one_through():
    sources = RateLimiter(SipSettings(requests_per_second=0.01, invites_per_second=0.01))
    assert sources.check("10.0.0.1", "invite", 0.0) is PASS
    assert sources.check("10.0.0.1", "invite", 1.0) is LIMIT
    assert sources.check("10.0.0.1", "invite", 101.0) is PASS


def test_who_guesses_passwords_is_not_heard_for_a_while():
    sources = RateLimiter(SETTINGS)
    for number in range(module.MAX_FAILURES):
        sources.record_failure("10.0.0.1", number)
    assert sources.check("10.0.0.1", "request", 10.0) is PASS
    sources.record_failure("10.0.0.1", 10.0)
    sources.record_failure("10.0.0.1", 10.0)
    assert sources.check("10.0.0.1", "request", 10.0) is DROP
    assert sources.check("10.0.0.2", "request", 10.0) is PASS
    assert sources.check("10.0.0.1", "request", 9.0 + module.PENALTY_S) is DROP
    assert sources.check("10.0.0.1", "request", 10.0 + module.PENALTY_S) is PASS


def test_a_phone_that_mistypes_now_and_then_is_forgiven():
    sources = RateLimiter(SETTINGS)
    for number in range(100):
        sources.record_failure("10.0.0.1", number * module.FAILURE_DECAY_S)
    assert sources.check("10.0.0.1", "request", 100 * module.FAILURE_DECAY_S) is PASS


@pytest.mark.parametrize(
    ("source", "trusted"),
    [("192.0.2.200", True), ("2001:db8::1", True), ("198.51.100.1", True), ("198.51.100.2", False)],
)
def test_trunks_are_never_limited(source, trusted):
    trunk = Trunk("pbx", addresses=("192.0.2.0/24", "2001:db8::/32"))
    sources = RateLimiter(SipSettings(trunks=(trunk,)))
    sources.trust(["198.51.100.1"])
    assert (set(spend(sources, source, "invite", 500)) == {PASS}) == trusted


@pytest.mark.slow
def test_a_million_made_up_addresses_take_little_time_and_bounded_memory():
    sources = RateLimiter(SETTINGS)
    for _ in range(module.MAX_FAILURES + 1):
        sources.record_failure("10.0.0.1", 0.0)
    dice = random.Random(1)
    addresses = [socket.inet_ntoa(dice.randbytes(4)) for _ in range(1_000_000)]
    started = time.process_time()
    for number, address in enumerate(addresses):
        sources.check(address, "invite", number * 1e-5)
    took = time.process_time() - started
    assert took < 10, f"{took} s for a million"
    assert len(sources) == module.MAX_SOURCES + 1
    assert sources.check("10.0.0.1", "request", 11.0) is DROP, "the flood washed the penalty away"


def test_what_is_kept_takes_a_few_megabytes():
    sources = RateLimiter(SETTINGS)
    tracemalloc.start()
    for number in range(module.MAX_SOURCES + 1000):
        sources.check(f"10.0.{number >> 8}.{number & 255}", "request", 0.0)
    for number in range(module.MAX_OFFENDERS + 1000):
        sources.record_failure(f"10.0.{number >> 8}.{number & 255}", 0.0)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(sources) == module.MAX_SOURCES + module.MAX_OFFENDERS
    assert kept < 12e6
