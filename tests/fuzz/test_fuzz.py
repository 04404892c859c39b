"""The fuzzers, briefly: nothing raises, hangs or grows, and what does is found."""

import random
from dataclasses import replace
from time import thread_time
from unittest import mock

import pytest

from offhook.media.rtp.receiver import AudioReceiver
from offhook.telephony.sip.media.offer_answer import MediaNegotiation
from offhook.telephony.sip.messages.message import MessageError, parse_message
from offhook.telephony.sip.sessions.session_requests import SessionRequests
from offhook.telephony.sip.transactions.transaction_table import TransactionTable
from offhook.telephony.sip.transactions.transactions import Transactions
from tests.fuzz import __main__ as fuzz
from tests.fuzz import agent as sip_fuzz_agent
from tests.fuzz import ice as ice_fuzz
from tests.fuzz import media as sip_fuzz_media
from tests.fuzz import parser as sip_fuzz_parser
from tests.fuzz import sdp as sip_fuzz_sdp
from tests.fuzz.damage import damage, storm, twist
from tests.fuzz.leftovers import sizes
from tests.fuzz.parser import frame, read
from tests.fuzz.result import Result
from tests.support.sip_messages import TORTURE, TYPICAL


def check(result: Result) -> None:
    """All but the growth and the time: caches fill up all along in so short a run, and other tests
    run beside this one."""
    assert not result.exceptions
    assert not result.left


@pytest.mark.parametrize("seed", range(2))
def test_damaged_messages_are_read_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    seeds = [*TYPICAL.values(), *TORTURE.values()]
    for _ in range(800):
        data = damage(seeds, chance)
        read(data)
        frame(data, chance)


def test_a_run_of_damaged_messages_is_told_in_numbers() -> None:
    result = sip_fuzz_parser.run(300, 3)
    check(result)
    assert result.messages == 300
    assert 0 < result.counts["parsed"] < 300
    assert result.per_second > 0


def test_a_message_with_another_meaning_is_mostly_still_a_message() -> None:
    chance, messages = random.Random(1), list(TYPICAL.values())
    read_again = 0
    for _ in range(500):
        try:
            parse_message(twist(chance.choice(messages), chance.choice(messages), chance))
        except MessageError:
            continue
        read_again += 1
    assert 200 < read_again < 480


def test_a_storm_is_of_messages_that_are_all_different() -> None:
    chance = random.Random(1)
    for _ in range(10):
        copies = storm(TYPICAL["PRACK"], 30, chance)
        assert len(copies) == 30
        assert len(set(copies)) in (1, 30)


def test_user_agents_survive_a_network_that_means_ill() -> None:
    result = sip_fuzz_agent.run(600, 4)
    check(result)
    assert result.messages >= 600
    assert result.counts["calls"] > 5
    assert result.counts["Confirmed"] > 1


def test_descriptions_are_understood_or_refused() -> None:
    result = sip_fuzz_sdp.run(600, 4)
    check(result)
    assert result.counts["taken"] > 120
    assert result.counts["NotAcceptable"] > 40


def test_a_leg_takes_whatever_comes() -> None:
    result = sip_fuzz_media.run(3000, 4)
    check(result)
    assert result.counts["packets of sound"] > 100
    assert result.counts["keys"] > 5


def test_the_port_of_webrtc_takes_whatever_comes() -> None:
    result = ice_fuzz.run(3000, 4)
    check(result)
    assert result.counts["unauthenticated"] > 50
    assert result.counts["malformed"] > 50
    assert result.counts["unknown_address"] > 50


def test_a_run_follows_from_its_seed() -> None:
    runs = [sip_fuzz_agent.run(150, 9) for _ in range(2)]
    assert runs[0].counts == runs[1].counts
    assert runs[0].messages == runs[1].messages


# --- what they would find ---


def test_what_raises_is_found() -> None:
    def take(self: SessionRequests, *arguments: object) -> None:
        raise ZeroDivisionError("of a bye")

    with mock.patch.object(SessionRequests, "_receive", take):
        result = sip_fuzz_agent.run(200, 4)
    assert not result.passed
    assert "ZeroDivisionError('of a bye')" in result.exceptions[0]


def test_what_is_left_is_found() -> None:
    with mock.patch.object(TransactionTable, "remove"):
        result = sip_fuzz_agent.run(300, 4)
    assert not result.passed
    assert result.left["transactions"] > 10


def test_what_takes_long_is_found() -> None:
    receive = Transactions._receive_request

    def slowly(self: Transactions, *arguments: object) -> None:
        until = thread_time() + 0.012
        while thread_time() < until:
            pass
        receive(self, *arguments)  # type: ignore[arg-type]

    with mock.patch.object(Transactions, "_receive_request", slowly):
        result = sip_fuzz_agent.run(20, 4)
    assert not result.passed
    assert any(line.startswith("slowest: ") for line in result.lines())


def test_a_plan_that_is_none_is_found() -> None:
    plan = MediaNegotiation._plan

    def without_port(self: MediaNegotiation, *arguments: object) -> object:
        return replace(plan(self, *arguments), remote=("192.0.2.1", 0))  # type: ignore[arg-type]

    with mock.patch.object(MediaNegotiation, "_plan", without_port):
        result = sip_fuzz_sdp.run(20, 4)
    assert result.exceptions
    assert not result.passed


def test_sound_of_another_length_is_found() -> None:
    with mock.patch.object(AudioReceiver, "pull", return_value=[0.0] * 320):
        result = sip_fuzz_media.run(50, 4)
    assert "a tick brought" in result.exceptions[0]


def test_containers_are_found_wherever_they_are() -> None:
    class Part:
        __slots__ = ("kept",)

        def __init__(self, number: int) -> None:
            self.kept = list(range(number))

    class Whole:
        def __init__(self) -> None:
            self.parts = {"a": Part(3), "b": Part(5)}

    assert sizes(Whole(), (__name__,)) == {".parts": 2, ".parts[].kept": 5}


def test_every_part_can_be_run_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for part in fuzz.PARTS:
        fuzz.main(["--part", part, "--messages", "30"])
        assert f"{part}: " in capsys.readouterr().out
    fuzz.main(["--messages", "60", "--json"])
    assert '"part": "parser"' in capsys.readouterr().out
