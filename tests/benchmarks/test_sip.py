"""The benchmarks by SIP measure what they say, and the scripted caller calls by SIP."""

import asyncio
import json
import os
import random
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.callers.pair import ResourceUse, Usage, open_ports
from benchmarks.callers.rtp import Heard, Sound
from benchmarks.processes.memory import HeapUsage
from benchmarks.processes.own_server import HOST
from benchmarks.servers.line_stats import COUNTED, LineStats
from benchmarks.sip import cost as sip_cost
from benchmarks.sip import load as sip_load
from benchmarks.sip import sip
from benchmarks.sip import timers as sip_timers
from benchmarks.sip import world as sip_world
from benchmarks.sip.callers import Callers
from benchmarks.sip.options import Options, request
from benchmarks.sip.soak import Rest, Sample, Soak
from benchmarks.sip.turns import ServerLog
from benchmarks.speech.lines import encode
from benchmarks.table import percentiles
from offhook.media.codecs.g711 import PcmuDecoder, PcmuEncoder
from offhook.media.leg import Leg
from offhook.media.pcm import RATE_OUT
from offhook.media.rtp.rtp import RtpPacket
from offhook.telephony.sip.messages.message import Request, parse_message, respond
from offhook.telephony.sip.transactions.transaction_table import TransactionTable
from offhook.telephony.sip.user_agent import UserAgent
from offhook.web.app.callers.caller_sip_io import QUIET_S, AgentByEar
from offhook.web.app.cli import caller_io
from offhook.web.app.cli.caller_io import CallError, ScriptedCall, ScriptLine
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.telephony.sip.phones import ToneHost, endpoint, is_tone, port_of

SILENCE = encode(np.zeros(RATE_OUT, np.int16), PcmuEncoder())


def tone(seconds: float, hz: float = 440) -> np.ndarray:
    angles = 2 * np.pi * hz * np.arange(int(seconds * RATE_OUT)) / RATE_OUT
    return (8000 * np.sin(angles)).astype(np.int16)


# --- packets ---


def test_what_is_missing_and_late_is_told_by_numbers_and_timestamps() -> None:
    heard = Heard()
    for i in [*range(10), *range(12, 20)]:
        late = 0.025 if i == 15 else 0.0
        heard.add(65_530 + i & 0xFFFF, 2**32 - 800 + 160 * i & 0xFFFFFFFF, 5 + i * 0.02 + late)
    assert (heard.packets, heard.missing) == (18, 2)
    late_ms = np.sort(heard.late_ms())
    assert late_ms[-1] == pytest.approx(25, abs=0.01)
    assert late_ms[-2] == pytest.approx(0, abs=0.01)


def test_percentiles_are_those_of_lists_and_of_arrays() -> None:
    assert percentiles([]) == percentiles(np.zeros(0)) == {}
    assert percentiles(np.arange(101)) == {"p50": 50, "p95": 95, "p99": 99, "max": 100}


def test_a_sound_is_sent_packet_by_packet_and_reports_are_passed_over() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far:
        far.bind((HOST, 0))
        far.settimeout(2)
        sound = Sound(encode(tone(1), PcmuEncoder()), random.Random(1))
        sound.connect(far.getsockname())
        for _ in range(3):
            sound.tick()
        packets = [RtpPacket.parse(far.recv(2000)) for _ in range(3)]
        assert [len(p.payload) for p in packets] == [160, 160, 160]
        assert packets[2].timestamp - packets[0].timestamp == 320
        decoder = PcmuDecoder()
        assert max(np.abs(decoder.decode(p.payload)).max() for p in packets) > 4000
        far.sendto(bytes((0x80, 200)) + bytes(26), (HOST, sound.port))  # a sender report
        far.sendto(RtpPacket(0, 7, 0, 1, bytes(160)).serialize(), (HOST, sound.port))
        sound.drain()
        sent, heard = sound.read()
        assert (sent, heard.packets) == (3, 1)
        assert sound.read()[1].packets == 0
        sound.close()


def test_lost_packets_are_numbered_and_not_sent() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far:
        far.bind((HOST, 0))
        far.settimeout(2)
        sound = Sound((SILENCE[0],), random.Random(1), loss=0.5)
        sound.connect(far.getsockname())
        for _ in range(100):
            sound.tick()
        sound._loss = 0.0
        sound.tick()
        numbers = [RtpPacket.parse(far.recv(2000)).sequence_number]
        first = sound._sequence - 100
        while numbers[-1] != sound._sequence:
            numbers.append(RtpPacket.parse(far.recv(2000)).sequence_number)
        assert sound.read()[0] == 101
        assert 30 < len(numbers) < 70
        assert first <= numbers[0]
        assert sorted(set(numbers)) == numbers
        sound.close()


# --- callers ---


async def callers_of(port: int, rate: float = 100) -> Callers:
    return Callers((HOST, port), rate, [SILENCE])


async def reported(callers: Callers, enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Its report, when there is enough in it: how soon that is, the machine says."""
    async with asyncio.timeout(HANGS_S):
        while not enough(report := callers.report()):
            await asyncio.sleep(0.2)
    return report


async def test_calls_are_set_up_and_their_sound_is_judged() -> None:
    async with endpoint() as (server, host):
        callers = await callers_of(port_of(server, "UDP"))
        try:
            filled = await callers.fill(3)
            assert (filled["up"], filled["refused"]) == (3, {})
            assert filled["setup_ms"]["max"] > 0
            callers.measure()
            report = await reported(callers, lambda r: min(r["packets"], r["sent"]) > 3 * 15)
            assert report["missing"] == report["cut"] == report["calls"] == 0
            assert report["own"]["sends_late_ms"]["max"] >= 0
            assert await callers.empty() == {"left": 0}
            await asyncio.wait_for(host.talks[2].over.wait(), HANGS_S)
        finally:
            await callers.close()
        assert server.user_agent.sessions == 0


async def test_calls_come_and_go_and_their_number_stays() -> None:
    async with endpoint() as (server, host):
        callers = await callers_of(port_of(server, "UDP"), rate=20)
        try:
            await callers.fill(2)
            callers.churn(2)
            await reported(callers, lambda r: r["calls"] > 2 + 5)
            callers.churn(0)
            report = await reported(callers, lambda r: r["up"] == 2)
            assert report["up"] == 2
            assert report["calls"] > 2 + 5
            assert len(host.talks) == report["calls"]
        finally:
            await callers.close()


async def test_with_messages_lost_all_calls_are_set_up_and_the_server_has_those_alive() -> None:
    async with endpoint() as (server, host):
        callers = Callers((HOST, port_of(server, "UDP")), 100, [SILENCE], loss=0.05)
        try:
            assert (await callers.fill(8))["up"] == 8
            standing = callers.standing()
            assert standing == {"up": 8, "all": 8, "placed": 8, "hung_up": 0}
            assert len(server.lines) == 8
            assert await callers.empty() == {"left": 0}
            assert (callers.standing()["up"], callers.standing()["hung_up"]) == (0, 8)
            await asyncio.wait_for(host.talks[7].over.wait(), HANGS_S)
        finally:
            await callers.close()


async def test_refusals_are_counted_and_whether_they_say_when_to_try_again() -> None:
    host = ToneHost()
    host.full = True
    async with endpoint(host) as (server, _):
        callers = await callers_of(port_of(server, "UDP"))
        try:
            filled = await callers.fill(3)
        finally:
            await callers.close()
    assert filled["up"] == 0
    assert filled["refused"] == {503: 3}
    assert filled["told_when"] == 3


async def test_a_call_that_the_server_ends_is_cut() -> None:
    async with endpoint() as (server, host):
        callers = await callers_of(port_of(server, "UDP"))
        try:
            await callers.fill(1)
            await host.talks[0].leg.hang_up("enough")
            report = await reported(callers, lambda r: not r["up"])
        finally:
            await callers.close()
    assert (report["up"], report["cut"]) == (0, 1)


async def test_a_command_that_there_is_none_of_is_not_passed_over() -> None:
    callers = await callers_of(9)
    with pytest.raises(ValueError, match="no such command"):
        await callers.execute("churn", [])
    await callers.close()


async def test_options_are_counted_by_their_answers() -> None:
    seen: list[Request] = []

    class Server(asyncio.DatagramProtocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, address: Any) -> None:
            asked = parse_message(data)
            assert isinstance(asked, Request)
            seen.append(asked)
            status = 200 if len(seen) % 4 else 503
            self.transport.sendto(respond(asked, status, to_tag="s").serialize(), address)

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Server, local_addr=(HOST, 0))
    answer = await Options(transport.get_extra_info("sockname")).ask(20, 5)
    transport.close()
    assert answer["statuses"] == {"200": 15, "503": 5}
    assert answer["lost"] == 0
    assert len({asked.via.branch for asked in seen}) == 20


# --- what is made of the figures ---

USAGE = Usage(10.0, 1.0, 5, {"p99": 1.5}, 2, 2, 4, 3.0, dict.fromkeys(COUNTED, 1000), [4.0, 4.4])


def test_what_a_server_spent_is_the_difference_of_two_looks() -> None:
    lines = {
        "heard_ms": 21_000,
        "packets_received": 2000,
        "packets_lost": 1003,
        "packets_late": 1001,
        "concealed_ms": 1080,
    }
    spent = ResourceUse.between(USAGE, replace(USAGE, wall_s=14.0, cpu_s=2.0, lines=lines))
    assert spent.cpu_percent == 25.0
    assert (spent.lost, spent.late, spent.concealed_percent) == (3, 1, 0.4)
    assert (spent.mos_mean, spent.mos_least) == (4.2, 4.0)


async def test_lines_are_counted_while_they_are_up_and_after() -> None:
    async with endpoint() as (server, host):
        lines = LineStats()
        callers = await callers_of(port_of(server, "UDP"))
        try:
            await callers.fill(2)
            await asyncio.sleep(0.4)
            one, other = (talk.leg for talk in host.talks)
            lines.enter(one)
            lines.enter(other)
            before: Any = lines.read()
            lines.leave(one)
            after: Any = lines.read()
        finally:
            await callers.close()
    assert before["packets_received"] == after["packets_received"] > 20
    assert len(before["mos"]) == len(after["mos"]) == 2


def test_the_ports_of_a_process_are_those_it_has_open() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((HOST, 0))
        port = sock.getsockname()[1]
        assert port in open_ports(os.getpid(), port, port)
        assert not open_ports(os.getpid(), port + 1, port + 1)
    assert port not in open_ports(os.getpid(), port, port)


SAMPLE = Sample(0.0, 0, 0, 0, 6, 200.0, 7, 30, 0, 1.0, 1.0)
HELD = HeapUsage(malloc_bytes=90 << 20, small_blocks=500_000, objects=160_000, rss_mb=120.0)


def soaked(grown: int = 0, **after: Any) -> Soak:
    """What 400 calls and as many again after the first part leave, `grown` bytes of it."""
    last = replace(HELD, malloc_bytes=HELD.malloc_bytes + grown)
    result = Soak("echo", 20, 5.0, before=SAMPLE, reports=[{"cut": 0, "refused": {}}])
    result.rests = [Rest(400, 32.0, SAMPLE, HELD), Rest(1200, 32.0, replace(SAMPLE, **after), last)]
    return result


def test_a_soak_tells_a_leak_from_noise() -> None:
    assert soaked().passed
    assert soaked().conclusive
    assert soaked(grown=150_000).passed
    leak = soaked(grown=800 * 2048)
    assert leak.kept_kb_per_call == pytest.approx(1.75)
    assert not leak.passed


@pytest.mark.parametrize("left", ["sessions", "tasks", "files", "ports"])
def test_a_soak_fails_on_what_is_left_behind(left: str) -> None:
    result = soaked(**{left: getattr(SAMPLE, left) + 1})
    assert result.left_behind[left] == 1
    assert not result.passed


def missed(result: Soak) -> list[str]:
    assert result.passed == all(check.passed for check in result.checks)
    return [check.name for check in result.checks if not check.passed]


def test_a_soak_fails_on_each_thing_that_is_amiss() -> None:
    assert missed(soaked()) == []
    refused, cut, lines, memory, orphans, restless = (soaked() for _ in range(6))
    refused.reports.append({"cut": 0, "refused": {"503": 1}})
    cut.reports.append({"cut": 1, "refused": {}})
    lines.series = [replace(SAMPLE, lines=n, alive=(99, 101)) for n in (99, 101, 102, 98)]
    memory.rests[-1] = replace(memory.rests[-1], sample=replace(SAMPLE, rss_mb=221.0))
    orphans.faults = ["ERROR Task was destroyed but it is pending!"]
    restless.rests[-1] = replace(restless.rests[-1], settled_s=None)
    assert missed(refused) == ["INVITEs refused"]
    assert missed(cut) == ["calls cut"]
    assert missed(lines) == ["lines in use are calls alive"]
    assert "2 of 4" in next(c.found for c in lines.checks if not c.passed)
    assert missed(memory) == ["memory at rest"]
    assert missed(orphans) == ["tasks without an owner"]
    assert missed(restless) == ["at rest after"]


def test_few_calls_prove_nothing() -> None:
    result = soaked()
    result.rests[0] = replace(result.rests[0], placed=20)
    assert not result.conclusive


def test_every_message_costs_something() -> None:
    steps = {step.name: step.us for step in sip_cost.measure(calls=5)}
    assert all(us > 0 for us in steps.values())
    assert {"INVITE, whole", "read INVITE", "ACK, whole"} < steps.keys()


def test_a_log_is_read_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    event = {"event": "caller_turn", "text": "hello", "call": "1"}
    path.write_text("not JSON\n" + json.dumps({"message": "no event"}) + "\n")
    log = ServerLog(path)
    assert log.take() == []
    line = json.dumps(event)
    with path.open("a") as file:
        file.write(line[:10])
        file.flush()
        assert log.take() == []
        file.write(line[10:] + "\n" + line + "\n")
        file.flush()
        assert log.take() == [event, event]
    assert log.take() == []


def test_more_calls_than_a_process_holds_are_not_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        sip.main(["load", "--calls", "1000"])
    assert "holds" in capsys.readouterr().err


def row_of(cpu_percent: float) -> sip_load.Row:
    spent = ResourceUse.between(USAGE, replace(USAGE, wall_s=11.0, cpu_s=1 + cpu_percent / 100))
    own = {"cpu_percent": 5.0, "sends_late_ms": {}, "lag_ms": {}}
    late = {"20": 0.0, "40": 0.0}
    return sip_load.Row(
        *("vad", "before", 50, 50, 5.0, 0, {}, {}, 0, 0, 9000, 0, {}, late, spent, 0.5, None),
        *(0.0, own),
    )


def test_a_set_up_costs_what_calls_that_come_and_go_cost_more() -> None:
    held, churn = row_of(20.0), replace(row_of(26.0), setups=100)
    assert sip_load._setup_cpu_ms(held, churn) == pytest.approx(3.0)
    assert sip_load._setup_cpu_ms(held, replace(churn, refused={"503": 1})) is None


def test_rows_can_be_printed() -> None:
    before = row_of(20.0)
    during = replace(before, phase="during", asked=100, refused={"503": 99}, told_when=99)
    assert "99x503" in sip_load.line(during)
    assert "50/100" in sip_load.line(during)
    said = sip_load.overload_summary([before, during])
    assert "99 calls refused, 99 of them told when" in said


# --- the accelerated day ---


@pytest.mark.slow
def test_an_hour_of_calls_leaves_nothing() -> None:
    result = sip_timers.measure(hours=1.0, calls_per_hour=150, seed=3)
    assert result.wrong == []
    assert result.left == {}
    assert [rest.settled_s is not None for rest in result.rests] == [True, True]
    assert result.passed, result.grown_kb
    assert result.registrations > 10
    assert result.repeated > 50
    assert result.messages["UPDATE"] > 0
    assert result.keys > 0
    kinds = {how.split()[0] for how in result.ended}
    assert {"talk", "long", "held", "keys", "busy", "given-up"} <= kinds


def test_a_transaction_that_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionTable, "remove", lambda self, transaction: None)
    monkeypatch.setattr(sip_timers, "REST_S", 100.0)
    result = sip_timers.measure(hours=0.2, calls_per_hour=150, seed=3)
    assert result.rests[-1].settled_s is None
    assert result.rests[-1].sizes["office._sender._transactions.table._servers"] > 10
    assert not result.passed


def test_a_session_that_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[object] = []
    process = UserAgent._process_session

    def keeping(self: UserAgent, route: Any) -> None:
        kept.append(route.of)
        process(self, route)

    monkeypatch.setattr(UserAgent, "_process_session", keeping)
    monkeypatch.setattr(sip_timers, "WARM_UP_HOURS", 0.1)
    result = sip_timers.measure(hours=0.3, calls_per_hour=200, seed=3)
    assert result.grown_kb > sip_timers.GROWTH_KB
    assert not result.passed


def test_a_timer_that_stays_due_is_told() -> None:
    class Stuck(sip_world.Party):
        def get_timer(self) -> float | None:
            return 1000.0

    world = sip_world.World(random.Random(1))
    Stuck(world, "198.51.100.9")
    with pytest.raises(RuntimeError, match="stays due"):
        world.run(2000.0)


def test_the_network_in_memory_loses_doubles_and_delays() -> None:
    class Far(sip_world.Party):
        def __init__(self, world: sip_world.World) -> None:
            super().__init__(world, "198.51.100.9")
            self.came: list[float] = []

        def receive(self, data: bytes, source: str) -> None:
            self.came.append(self.world.now)

    world = sip_world.World(random.Random(1))
    far = Far(world)
    for _ in range(2000):
        world.send(request((HOST, 1), (HOST, 2)), "198.51.100.1", far.address)
    world.run(world.now + 10)
    lost, doubled = 2000 * sip_world.LOSS, 2000 * sip_world.DOUBLING
    assert len(far.came) == pytest.approx(2000 - lost + doubled, abs=40)
    assert sip_world.DELAY_S[0] <= far.came[0] - 1000 < far.came[-1] - 1000 <= 0.15
    assert world.messages == {"OPTIONS": 2000}


# --- the scripted caller by SIP ---


class EchoHost(ToneHost):
    """Says back what it hears, a second later."""

    async def run_call(self, leg: Leg, agent: str) -> None:
        from offhook.media.codecs.resample import Resampler

        resampler = Resampler(16_000, RATE_OUT)
        waiting: list[np.ndarray] = []

        def tick(heard: np.ndarray, said: object, now: float) -> None:
            waiting.append(resampler.process(heard))
            leg.playout.write(waiting.pop(0) if len(waiting) > 50 else np.zeros(480, np.int16))

        leg.listen(tick)
        self.clock.add(leg)
        try:
            await leg.until_closed()
        finally:
            self.clock.remove(leg)


async def test_the_scripted_caller_calls_by_sip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_io, "GREETING_S", 0.2)
    async with endpoint(EchoHost()) as (server, host):
        url = f"sip:100@{HOST}:{port_of(server, 'UDP')}"
        shown: list[str] = []
        call = ScriptedCall(
            url, [ScriptLine("a tone", tone(0.8))], show=shown.append, codecs=("pcmu",)
        )
        report = await call.run()
        (record,) = host.records
    (turn,) = report.turns
    assert turn.response_ms is not None
    assert turn.response_ms > 0
    assert report.ended_by == "caller"
    assert report.statistics["codec"] == "pcmu"
    assert report.statistics["setup_ms"] > 0
    assert report.statistics["packets_lost"] == 0
    heard = call.leg.heard
    pieces = (np.concatenate(heard[i : i + 25]) for i in range(0, len(heard) - 25, 5))
    assert any(is_tone(piece, 16_000, 440) for piece in pieces)
    assert any(text.startswith("  answered after") for text in shown)
    assert (record.caller, record.called, record.ended_by) == ("offhook-call", "100", "remote")


async def test_a_refusal_by_sip_is_said_so() -> None:
    host = ToneHost()
    host.full = True
    async with endpoint(host) as (server, _):
        url = f"sip:100@{HOST}:{port_of(server, 'UDP')}"
        with pytest.raises(CallError, match=r"sip:100@.*503"):
            await ScriptedCall(url, []).run()
    nobody = f"sip:100@{HOST}:{free_port()};transport=tcp"
    with pytest.raises(CallError, match="sip:100@"):
        await ScriptedCall(nobody, []).run()
    with pytest.raises(CallError, match="sip:"):
        ScriptedCall("sip:", [])


def test_by_ear_the_agent_speaks_from_the_first_sound_to_a_long_silence() -> None:
    speaks, silent = asyncio.Event(), asyncio.Event()
    ear = AgentByEar(speaks, silent)
    loud, quiet = tone(0.02)[:320], np.zeros(320, np.int16)
    ear.tick(quiet, None, 0.0)
    assert not speaks.is_set()
    ear.tick(loud, None, 1.0)
    assert speaks.is_set()
    ear.tick(quiet, None, 1.0 + QUIET_S / 2)
    assert not silent.is_set()
    ear.tick(quiet, None, 1.1 + QUIET_S)
    assert silent.is_set()
    ear.forget()
    assert not speaks.is_set()
    ear.tick(loud, None, 9.0)
    assert speaks.is_set()
    assert not silent.is_set()
