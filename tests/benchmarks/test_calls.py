"""Whole conversations by `offhook bench calls`: what its callers count, and the report."""

import asyncio
import json
import sys
from array import array
from collections.abc import Sequence
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from random import Random

import aiohttp
import numpy as np
import pytest

from benchmarks.callers import servers
from benchmarks.callers.caller import (
    LEAD_PACKETS,
    STALL_S,
    WORD_PACKETS,
    Caller,
    Habits,
    Punctuality,
    SpokenLine,
    heard_in,
    inaudible,
)
from benchmarks.callers.ear import BUFFER_S, Ear
from benchmarks.callers.process import server_of
from benchmarks.callers.records import CallRecord, ProcessRecord, Report, TurnRecord
from benchmarks.callers.report import page, ticks
from benchmarks.callers.servers import FAULTS, LINKED
from benchmarks.callers.summary import (
    FAILOVER_HEAD,
    Result,
    failover_row,
    noticed,
    summarize,
    table,
)
from benchmarks.calls import calls, failover
from benchmarks.processes.usage import Samples
from benchmarks.servers.model import GREETING, number_in, reply_to, user_turns
from benchmarks.speech import number_words as nw
from offhook.media.codecs.g711 import PcmuDecoder
from offhook.media.leg import CallInfo
from offhook.media.pcm import RATE_IN, SAMPLES_IN, Pcm
from offhook.pipeline.conversation.call_info import model_instructions
from tests.support.waiting import HANGS_S
from tests.web.workers.workers import needs_node


def packets(words: int) -> list[Pcm]:
    pcm = nw.sound(nw.line(words, Random(1)), RATE_IN)
    return list(pcm.reshape(-1, SAMPLES_IN))


def heard(arrivals: dict[int, float] | None = None, drop: frozenset[int] = frozenset()) -> Ear:
    """The ear after a reply of ten words; `arrivals`: lateness of packets in s."""
    ear = Ear(RATE_IN, numbers=True)
    ear.expect_reply()
    for number, pcm in enumerate(packets(10)):
        if number in drop:
            ear.skip(1, 1, PcmuDecoder(), b"")
            continue
        at = number * 0.02
        ear.receive(pcm, at, 5 + at + (arrivals or {}).get(number, 0.0))
    return ear


def test_a_whole_reply_has_no_holes_and_all_words() -> None:
    ear = heard()
    assert (ear.holes_ms, ear.late, ear.missing) == ([], 0, 0)
    assert len(ear.counter.levels) == 10
    assert ear.began_at == 5


def test_jitter_within_the_buffer_is_not_heard() -> None:
    assert heard({20: BUFFER_S - 0.01}).holes_ms == []


def test_a_stall_is_one_hole() -> None:
    ear = heard({number: 0.5 for number in range(20, 100)})
    assert ear.holes_ms == [pytest.approx(500 - BUFFER_S * 1000)]


def test_silence_sent_in_the_middle_is_a_hole() -> None:
    ear = Ear(RATE_IN, numbers=True)
    ear.expect_reply()
    for number, pcm in enumerate(packets(10)):
        at = number * 0.02 + (0.3 if number >= 25 else 0.0)
        ear.receive(pcm, at, 5 + at)
    assert ear.holes_ms == [pytest.approx(300)]


def test_a_packet_dropped_on_purpose_is_concealed() -> None:
    ear = heard(drop=frozenset({7, 31}))
    assert ear.holes_ms == []
    assert len(ear.counter.levels) == 10
    assert ear.mos("opus") is not None


def test_a_caller_speaks_listens_and_leaves() -> None:
    """Ticks of a clock: greeting, a line, a reply, and so on until it wants to hang up."""
    record, turns, ear = CallRecord("webrtc 0.0", "webrtc", 0.0), [], Ear(RATE_IN, True)
    levels = tuple(map(nw.level_of, nw.line(5, Random(2))))
    lines = [SpokenLine([b"speech"] * 25, levels)]
    habits = Habits(interrupting=0, pressing=0, call_s=20)
    turns_made: list[TurnRecord] = turns
    late_ms = array("f")
    caller = Caller(record, turns_made, ear, lines, [b"quiet"], habits, Random(3), late_ms)
    caller.connect(0.0)
    reply, sent, said = packets(5), 0, 0
    now, place = 0.0, 0.0
    to_play: list[Pcm] = list(reply)
    while not caller.over and now < 60:
        payload = caller.step(now)
        speaking = payload == b"speech"
        said += speaking
        if said and said % 25 == 0 and not speaking and not to_play and sent < said // 25:
            sent += 1
            to_play = list(reply)
            caller.receive_transcript(" ".join(nw.NUMBERS[n] for n in levels), now)
        pcm = to_play.pop(0) if to_play else np.zeros(SAMPLES_IN, np.int16)
        ear.receive(pcm, place, now)
        now, place = now + 0.02, place + 0.02
    assert caller.over
    assert len(turns_made) >= 3
    assert all(t.complete and t.response_ms is not None and t.response_ms < 100 for t in turns)
    whole = summarize(Report([record], turns_made))
    assert whole.recognized == asdict(nw.Comparison(right=5 * len(turns)))
    assert max(late_ms) == pytest.approx(0, abs=0.01)


def speaking_caller(late_at: float = -1.0) -> tuple[Caller, CallRecord, float]:
    """A caller, its record and the time at the first packet of a line of six words, 75 packets. Its
    packet of the time `late_at` is late by 0.1 s."""
    record, levels = CallRecord("webrtc 0.0", "webrtc", 0.0), (1, 2, 3, 4, 5, 0)
    lines = [SpokenLine([b"speech"] * (LEAD_PACKETS + 6 * WORD_PACKETS), levels)]
    habits = Habits(interrupting=0, pressing=0, call_s=20)
    ear = Ear(RATE_IN, True)
    caller = Caller(record, [], ear, lines, [b"quiet"], habits, Random(3), array("f"))
    caller.connect(-4.0)
    now = 0.0
    while caller.step(now + (0.1 if abs(now - late_at) < 0.01 else 0.0)) != b"speech":
        now += 0.02
    return caller, record, now


@pytest.mark.parametrize(
    ("dropped", "late", "places"),
    [
        ((), (), []),
        ((0, 24), (), [0]),
        ((24, 25), (), [0, 1]),
        (range(30, 42), (), [1, 2]),
        ((), (0,), [0]),
        ((), (74,), [5]),
        ((), (75,), [5]),  # an encoder is late by some ms
    ],
)
def test_a_word_that_the_network_lost_is_not_asked_of_the_server(
    dropped: Sequence[int], late: Sequence[int], places: list[int]
) -> None:
    assert inaudible(6, dropped, late) == places


def test_a_caller_knows_which_of_its_words_were_lost_on_the_way() -> None:
    caller, record, now = speaking_caller()
    for packet in range(1, 75):
        now += 0.02
        caller.step(now + (0.1 if packet == 50 else 0.0))  # the process was late
        if packet == 28:
            caller.lose()
    caller.receive_transcript("one three two five five zero [pressed 5#]", now)
    caller.end(now, False)
    assert record.words == [1, 2, 3, 4, 5, 0]
    assert record.inaudible == [1, 3, 4, 5]  # what follows a late packet may be stretched
    assert record.transcript == [1, 3, 2, 5, 5, 0]
    record.setup_ms, record.due = 1.0, None
    heard = summarize(Report([record])).recognized
    assert heard == asdict(nw.Comparison(right=4, inaudible=2))


def test_words_soon_after_a_stall_of_the_caller_may_be_stretched() -> None:
    _, _, begins = speaking_caller()
    caller, record, now = speaking_caller(begins - 0.2)
    assert now == begins
    for _ in range(74):
        now += 0.02
        caller.step(now)
    caller.end(now, False)
    assert record.inaudible == [0, 1, 2]
    record.setup_ms, record.due, record.transcript = 1.0, None, [1, 2, 3, 3, 4, 5, 0]
    assert summarize(Report([record])).recognized == asdict(nw.Comparison(right=6))
    record.transcript = [1, 2, 3, 4, 5, 5, 0]
    assert summarize(Report([record])).recognized == asdict(nw.Comparison(right=6, twice=1))


def test_the_reply_that_a_line_interrupts_is_no_reply_to_it() -> None:
    """Though the agent goes on for a while: the server has still to recognize the line."""
    record, turns, ear = CallRecord("sip 0.0", "sip", 0.0), [], Ear(RATE_IN, True)
    lines = [SpokenLine([b"speech"] * 25, (1, 2, 3))]
    kept: list[TurnRecord] = turns
    caller = Caller(record, kept, ear, lines, [b"quiet"], Habits(1, 0, 20), Random(3), array("f"))
    caller.connect(-4.0)
    now = 0.0

    def pass_time(seconds: float, agent_speaks: bool) -> None:
        nonlocal now
        for _ in range(round(seconds / 0.02)):
            caller.step(now)
            pcm = packets(1)[0] if agent_speaks else np.zeros(SAMPLES_IN, np.int16)
            ear.receive(pcm, now, now)
            now += 0.02

    pass_time(2.5, agent_speaks=False)  # the first line
    pass_time(3.0, agent_speaks=True)  # its reply, over which the second is said
    assert record.words == [1, 2, 3] * 2
    assert [turn.response_ms is not None for turn in turns] == [True]
    pass_time(0.5, agent_speaks=False)
    caller.end(now, False)
    assert record.due == 3


def test_the_last_line_may_be_recognized_or_not_when_the_call_ends() -> None:
    caller, record, now = speaking_caller()
    caller.end(now, True)
    assert (record.words, record.due) == ([1, 2, 3, 4, 5, 0], 0)
    for transcript in ([], [1, 2], [1, 2, 3, 4, 5, 0]):
        record.setup_ms, record.transcript = 1.0, transcript
        assert summarize(Report([record])).recognized == asdict(
            nw.Comparison(right=len(transcript))
        )


def test_lateness_is_that_of_each_packet() -> None:
    late = Punctuality()
    assert [round(late.late_s(at), 3) for at in (5.0, 5.02, 5.09, 5.09, 5.09, 5.1)] == [
        *(0, 0, 0.05, 0.03, 0.01, 0)
    ]
    assert late.late_s(9.0) == pytest.approx(STALL_S)  # the clock skips what it cannot make up for
    assert late.late_s(9.0) == pytest.approx(STALL_S - 0.02)


def test_the_model_knows_what_callers_by_telephone_have_said() -> None:
    info = CallInfo("sip", caller="+10000030001", called="100")
    messages = [
        {"role": "system", "content": model_instructions("Be brief.", info)},
        {"role": "user", "content": "one two"},
        {"role": "assistant", "content": "bravo charlie"},
        {"role": "user", "content": [{"type": "text", "text": "[pressed 5#] zero"}]},
    ]
    assert number_in(messages) == "+10000030001"
    assert heard_in(" ".join(user_turns(messages))) == [1, 2, 0]
    assert number_in([{"role": "system", "content": model_instructions("", CallInfo())}]) == ""


def test_late_callers_are_told_from_slow_servers() -> None:
    late = {"p50": 1.0, "p95": 9.0, "p99": 31.0, "max": 80.0}
    run, punctual = result("calls"), result("calls")
    lag_ms = {"p50": 0.0, "p95": 1.0, "p99": 2.0, "p100": 3.0}
    run.report.processes.append(ProcessRecord(97.0, lag_ms, late))
    punctual.report.processes.append(ProcessRecord(97.0, lag_ms, {**late, "p99": 19.0}))
    assert "the load generator is the limit" in table(run)
    assert "the load generator is the limit" in page([run])
    assert run.as_dict()["callers_are_the_limit"] is True
    assert "limit" not in table(punctual)
    assert punctual.as_dict()["callers_are_the_limit"] is False


def test_the_model_repeats_in_words_that_sound_the_same() -> None:
    assert reply_to([{"role": "system", "content": "x"}]) == GREETING
    said = nw.line(6, Random(1))
    reply = reply_to([{"role": "user", "content": " ".join(said)}]).split()
    assert [nw.level_of(word) for word in reply] == [nw.level_of(word) for word in said]
    assert not set(reply) & set(said)


def test_shares_of_the_mix_add_up() -> None:
    assert calls.shares("webrtc=60,sip=30,twilio=10", 200) == {
        "webrtc": 120,
        "sip": 60,
        "twilio": 20,
    }
    assert sum(calls.shares("webrtc=1,sip=1,twilio=1", 100).values()) == 100
    parts = calls.divided({"webrtc": 30, "sip": 21}, 3)
    assert [sum(part.values()) for part in parts] == [17, 17, 17]
    with pytest.raises(ValueError, match="telex"):
        calls.shares("telex=1", 5)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--url", "http://h", "--kill", "edge"], "servers that this command starts"),
        (["--url", "http://h", "--mix", "sip"], "phones need --sip"),
        (["--url", "http://h", "--mix", "twilio"], "--twilio-secret"),
        (["--kill", "worker", "--minutes", "1", "--at", "60s"], "after the end"),
        (["--mix", "telex"], "telex"),
        (["--beside", "pipecat", "--kill", "edge"], "all alive"),
        (["--beside", "pipecat", "--mix", "sip"], "all alive"),
    ],
)
def test_what_cannot_be_run_is_refused(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        calls.main(arguments)
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["link", "node"])
def test_another_machine_needs_root(
    fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calls, "missing", lambda: "only root makes network namespaces")
    with pytest.raises(SystemExit):
        failover.main(["--kill", fault])
    assert f"--kill {fault}: only root makes network namespaces" in capsys.readouterr().err


def test_all_that_can_happen_happens_beside_one_control_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "missing", lambda: "")
    assert calls.faults_of(["all"]) == list(FAULTS)
    assert calls.faults_of(["upgrade"]) == ["upgrade"]
    assert calls.faults_of(["drain", "hang"]) == ["hang", "drain"]
    assert calls.faults_of([]) == []
    monkeypatch.setattr(calls, "missing", lambda: "only root makes network namespaces")
    assert calls.faults_of(["all"]) == [name for name in FAULTS if name not in LINKED]


@pytest.mark.slow
async def test_an_upgrade_of_all_workers_loses_no_call() -> None:
    arguments = ["--kill", "upgrade", "--calls", "3", "--minutes", "0.7", "--at", "10", "--json"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "offhook", "bench", "failover", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, progress = await process.communicate()
    assert process.returncode == 0
    assert b"all workers have been upgraded" in progress
    control, upgrade = json.loads(output)["failover"]
    assert (control["run"], upgrade["run"]) == ("control", "upgrade")
    assert upgrade["words"] > 20
    # A machine that stands still for over a second loses words.
    assert upgrade["cut"] == 0
    assert upgrade["lost"] + upgrade["twice"] + upgrade["wrong"] < 0.1 * upgrade["words"]


@pytest.mark.slow
async def test_stock_pipecat_takes_the_same_calls() -> None:
    arguments = ["--calls", "1", "--minutes", "0.4", "--beside", "pipecat", "--json"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "offhook", "bench", "calls", *arguments),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    ours, stock = json.loads(output)["runs"]
    assert (ours["name"], stock["name"]) == ("calls", "pipecat")
    assert "pipecat" in stock["processes"]
    for run in (ours, stock):
        whole = run["summary"][0]
        assert whole["answered"] >= 1
        assert whole["recognized"]["right"] > 5


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.figures = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.figures += tag == "figure"
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "line", "circle", "polyline", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag


def result(name: str, fault_at: float | None = None) -> Result:
    made = [CallRecord("webrtc 0.0", "webrtc", 10.0, 200.0, ended=40.0, ended_by="server", mos=4.2)]
    made[0].words, made[0].transcript = [1, 2, 3, 1, 2, 3], [1, 2, 3, 2, 3]
    made.append(CallRecord("webrtc 0.1", "webrtc", 40.5, 300.0, ended=60.0, ended_by="caller"))
    spans = [{"name": "speech_end", "ms": 130}, {"name": "asr_final", "ms": 90}]
    turns = [
        TurnRecord("webrtc 0.0", "webrtc", 12.0 + n, words=[1, 2, 3], transcript=[1, 2, 3][n:])
        for n in range(2)
    ]
    for turn in turns:
        turn.response_ms, turn.final_ms, turn.spans, turn.holes_ms = 500.0, 400.0, spans, [80.0]
    usage = [Samples("edge <1>", [11.0, 12.0, 13.0], [20.0, 30.0, 40.0], [99.0, 103.0, 102.0])]
    return Result(name, {"calls": 1}, 9.0, 60.0, Report(made, turns), usage, [], fault_at)


def test_memory_is_told_at_the_beginning_at_half_time_and_at_the_end() -> None:
    one = result("calls")
    used = one.as_dict()["processes"]["edge <1>"]
    assert [used[f"mb_{when}"] for when in ("first", "half", "last", "max")] == [99, 103, 102, 103]
    assert "99 -> 103 -> 102 MB" in table(one)


def test_the_report_is_one_page_with_nothing_from_elsewhere() -> None:
    results = [result("control"), result("worker", 20.0)]
    rows = [noticed(one.name, one.report, 20.0, 390.0) for one in results]
    text = page(results, rows)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.links == []
    assert tags.figures >= 12
    assert "prefers-color-scheme: dark" in text
    assert "edge &lt;1&gt;" in text
    assert text.count('class="mark"') >= 5
    assert rows[0].calls == 1
    assert rows[0].lost == 1
    assert rows[0].cut == 1
    assert rows[0].back_ms == pytest.approx(800)
    assert rows[0].final_late_ms["max"] == pytest.approx(10)
    assert len(failover_row(rows[0])) == len(FAILOVER_HEAD)
    assert "edge <1>" in table(results[0])
    json.dumps([one.as_dict() for one in results])


def test_ticks_are_round() -> None:
    assert ticks(4.0) == [0, 1, 2, 3, 4]
    assert ticks(730) == [0, 200, 400, 600, 800]
    assert ticks(0) == [0, 1]


@pytest.mark.slow
async def test_browsers_phones_and_twilio_converse_with_servers_of_their_own(
    tmp_path: Path,
) -> None:
    """Edge, workers, model and callers are processes; every word said is recognised once."""
    report = tmp_path / "report.html"
    arguments = ["--calls", "3", "--mix", "webrtc=1,sip=1,twilio=1", "--minutes", "0.5"]
    arguments += ["--pressing", "0", "--json", "--report", str(report)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "offhook", "bench", "calls", *arguments),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    (run,) = json.loads(output)["runs"]
    whole, *kinds = run["summary"]
    assert [kind["name"] for kind in kinds] == ["webrtc", "sip", "twilio"]
    assert all(kind["calls"] >= 1 and kind["answered"] >= 1 for kind in kinds)
    assert whole["recognized"]["right"] > 10
    assert whole["recognized"]["twice"] < 0.1 * whole["recognized"]["right"]
    assert whole["refused"] == {}
    assert all(kind["recognized"]["right"] > 0 for kind in kinds)
    assert {"edge 1", "asr worker 1", "tts worker 1", "model"} <= run["processes"].keys()
    assert "polyline" in report.read_text()


@pytest.mark.slow
@needs_node
async def test_edges_lose_a_machine_of_workers_and_find_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "AWAY_S", 5.0)
    async with servers.own_servers(1, 2, "node") as running, aiohttp.ClientSession() as http:

        async def until_counted(state: str, count: int) -> None:
            """Until the edge counts so many workers of each kind in a state."""
            async with asyncio.timeout(HANGS_S):
                while True:
                    async with http.get(f"{running.web[0]}/healthz") as answer:
                        kinds = (await answer.json())["workers"].values()
                    if all(kind.get(state) == count for kind in kinds):
                        return
                    await asyncio.sleep(0.1)

        await until_counted("ready", 2)
        await running.apply("node")
        await until_counted("gone", 1)
        await until_counted("ready", 2)


def test_the_callers_of_a_server_are_spread_over_the_others() -> None:
    servers = ["a", "b", "c", "d"]
    first = [server_of(servers, number, 0) for number in range(24)]
    assert [first.count(one) for one in servers] == [6, 6, 6, 6]
    of_a = [number for number in range(24) if first[number] == "a"]
    then = [server_of(servers, number, 1) for number in of_a]
    assert [then.count(one) for one in servers] == [0, 2, 2, 2]
    assert [server_of(["a", "b"], 4, attempt) for attempt in range(3)] == ["a", "b", "a"]
    assert server_of(["a"], 7, 3) == "a"
