"""`offhook bench turns`: conversation from the caller's side, over real WebRTC to a real server.

Measures the response time of a scripted conversation; then interruptions of a long reply at random
moments (how soon the agent falls silent, and whether the context keeps exactly the words that were
sent), and coughs and words of agreement (which must not stop it).
"""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import command
from benchmarks.processes.own_server import free_port, is_ready, started
from benchmarks.processes.process import child
from benchmarks.processes.process import run as run_loop
from benchmarks.speech.lines import CONVERSATION, voiced
from benchmarks.speech.transcript import WordEnd, mark_errors, recognise, words, words_beyond
from offhook.media.pcm import PACKET_MS, RATE_OUT, Pcm, dbfs
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.speech.recognizer import Word
from offhook.signaling.peer_io import use_addresses
from offhook.web.app.cli.caller_io import AUDIBLE_DBFS, ScriptedCall, ScriptLine

ASK = "Tell me about yourself."
CONVERSATIONS = 4
"""With a language model."""
AHEAD = (("nothing", False, False), ("the model", True, False), ("model and voice", True, True))
"""What begins in pauses of the caller, `think_ahead` and `speak_ahead`."""
INTERRUPTIONS = 20
COUGHS = 5
COUGH = "(a cough)"
AGREEMENT = ("Okay.", "Yeah.", "I see.", "Sure.", "Oh, okay.")
"""Said while listening; the included recognizer understands them in the included voice, unlike an
"uh-huh"."""
EARLY_TICKS = 10
"""Ticks by which the server's messages about a reply may follow its first audio."""
GOES_ON_S = (1.2, 2.5)
"""Time in s after the onset of a cough or a word of agreement in which the agent is heard again."""
START_S = 30
"""Time limit in s for a server to load its engines."""
ABSENT = "the server did not come up"


@dataclass
class Trial:
    kind: str
    stop_ms: float | None = None
    """Time in ms from the onset of the caller's audio, as sent, to the last packet of the agent's
    speech."""
    decision_ms: float | None = None
    """Time in ms from that onset to the server's interruption event."""
    after_decision_ms: float | None = None
    """Time in ms from that event to the last packet of the agent's speech; negative: it was silent
    before."""
    goes_on: bool = False
    """Whether the agent was heard within GOES_ON_S of that onset, and no interruption."""
    heard: str = ""
    """The words kept in the context."""
    unheard: str = ""
    said: list[WordEnd] = field(default_factory=list)
    """The whole reply, with times from the tick at which it was first expected."""
    recognised: list[Word] = field(default_factory=list)
    """Words recognized in the received audio, with their times."""
    cut_ms: int | None = None
    """End of the received audio."""
    words_off: int | None = None
    """Words in the context minus those recognized; the truncated word may count or not."""
    mark_errors_ms: list[int] = field(default_factory=list)
    """Lateness of the server's word ends."""


@dataclass
class Result:
    responses: list[dict[str, Any]] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)


@asynccontextmanager
async def server(
    log: Path | None = None, within_s: float = START_S, /, **environment: str
) -> AsyncIterator[str]:
    """Runs a real `offhook serve` on loopback, logging to a file; yields its URL once it is ready.
    Raises RuntimeError."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    settings = {**os.environ, "OFFHOOK_WEBRTC_ADDRESSES": '["127.0.0.1"]', **environment}
    arguments = ("serve", "--port", str(port))
    async with started(arguments, partial(is_ready, url), within_s, ABSENT, settings, log=log):
        yield url


def cough(seed: int) -> Pcm:
    """Returns a burst of noise that rises in 5 ms and decays over 200 ms, like the first part of a
    cough."""
    rng = np.random.default_rng(seed)
    samples = RATE_OUT * 220 // 1000
    envelope = np.minimum(np.arange(samples) / (RATE_OUT * 0.005), 1)
    envelope = envelope * np.exp(-np.arange(samples) / (RATE_OUT * 0.06))
    noise = np.convolve(rng.standard_normal(samples), np.ones(6) / 6, "same")
    return (noise * envelope * 15_000).clip(-32768, 32767).astype(np.int16)


class Trials(ScriptedCall):
    """One call with many trials."""

    def __init__(
        self,
        url: str,
        lines: dict[str, Pcm],
        recognizer: PocketSphinxRecognizer,
        interruptions: int,
    ) -> None:
        super().__init__(url, [])
        self._interruptions = interruptions
        self._pcm = lines
        self._recognizer = recognizer
        self._random = random.Random(1)
        self.trials: list[Trial] = []

    async def _converse(self) -> None:
        await self._within(self._agent_speaks, 5)
        await self._within(self._agent_silent, 20)
        trials = [("interruption", ASK)] * self._interruptions + [("cough", COUGH)] * COUGHS
        trials += [("agreement", text) for text in AGREEMENT]
        await asyncio.sleep(0.5)
        await self._ask()
        for kind, line in trials:
            if kind != "interruption":  # the reply to the last one is not long enough for more
                await self._within(self._agent_silent, 20)
                await self._ask()
            if not self.leg.closed:
                await self._trial(kind, self._pcm[line])

    async def _ask(self) -> None:
        """Has the agent begin a long reply."""
        self._agent_speaks.clear()
        self.leg.playout.write(self._pcm[ASK])
        await self._within(self._agent_speaks, 10)

    async def _trial(self, kind: str, pcm: Pcm) -> None:
        loop = asyncio.get_running_loop()
        trial = Trial(kind)
        self.trials.append(trial)
        await asyncio.sleep(self._random.uniform(1.5, 3.0))
        seen = len(self.report.events)
        self._agent_speaks.clear()
        onset = loop.time()
        self.leg.playout.write(pcm)
        event = await self._server_event(seen, 6.0 if kind == "interruption" else GOES_ON_S[1])
        if event is None or event["type"] != "interrupted":
            await asyncio.sleep(max(0.0, onset + GOES_ON_S[1] - loop.time()))
            first, last = (onset + seconds for seconds in GOES_ON_S)
            trial.goes_on = any(first < at < last for at in self.leg.sounded)
            return
        trial.decision_ms = (event["time"] - onset) * 1000
        await asyncio.sleep(0.3)
        # A decision after the caller's last word is followed by the answer, which is no rest.
        answers = [
            other["time"] - EARLY_TICKS * PACKET_MS / 1000
            for other in self.report.events[seen:]
            if other["type"] == "bot-started-speaking" and other["time"] >= event["time"]
        ]
        last = self.leg.last_sound_before(min([event["time"] + 0.3, *answers]))
        trial.stop_ms = (last - onset) * 1000
        trial.after_decision_ms = (last - event["time"]) * 1000
        trial.heard, trial.unheard = event["heard"], event["unheard"]
        await self._compare(trial, self._reply_from(seen))
        await self._within(self._agent_speaks, 10)

    def _reply_from(self, seen: int) -> int:
        """Returns the tick before the first audio of the reply in which the first `seen` events
        end."""
        began = [
            event["at_ms"] // PACKET_MS
            for event in self.report.events[:seen]
            if event["type"] == "bot-started-speaking"
        ]
        return max(0, began[-1] - EARLY_TICKS) if began else 0

    async def _compare(self, trial: Trial, reply_from: int) -> None:
        """Compares the words of the context with those in the audio received since tick
        `reply_from`."""
        heard = self.leg.heard[reply_from:]
        loud = [tick for tick, pcm in enumerate(heard, 1) if dbfs(pcm) > AUDIBLE_DBFS]
        trial.cut_ms = loud[-1] * PACKET_MS if loud else 0
        reply, ends = words(f"{trial.heard} {trial.unheard}"), self._word_ends(reply_from)
        trial.said = [WordEnd(word, end) for word, end in zip_longest(reply, ends[: len(reply)])]
        trial.recognised = list((await recognise(self._recognizer, np.concatenate(heard))).words)
        context = len(words(trial.heard))
        trial.words_off = words_beyond(context, trial.recognised, trial.said, trial.cut_ms)
        trial.mark_errors_ms = mark_errors(trial.recognised, trial.said)

    def _word_ends(self, reply_from: int) -> list[int]:
        """Returns the positions at which the server reported the ends of words since that tick; it
        reports on sending their last packet, which then waits in the jitter buffer."""
        delay_ms = self.leg.statistics().buffer_ms - reply_from * PACKET_MS
        return [
            round(event["at_ms"] + delay_ms)
            for event in self.report.events
            if event["type"] == "bot-tts-text" and event["at_ms"] >= reply_from * PACKET_MS
            for _ in words(event["data"]["text"])
        ]

    async def _server_event(self, seen: int, seconds: float) -> dict[str, Any] | None:
        """Returns the server's first decision about what was sent."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while loop.time() < deadline and not self.leg.closed:
            for event in self.report.events[seen:]:
                data = event["data"]
                if event["type"] == "server-message" and data.get("type") in (
                    "interrupted",
                    "false-interruption",
                    "backchannel",
                ):
                    return {**data, "time": event["time"]}
            await asyncio.sleep(0.005)
        return None

    def on_message(self, text: str) -> None:
        count = len(self.report.events)
        super().on_message(text)
        for event in self.report.events[count:]:
            event["time"] = asyncio.get_running_loop().time()


async def responses_of_a_model(first_token_s: float) -> dict[str, list[dict[str, Any]]]:
    """Returns the turns of conversations with a language model, by what begins in pauses."""
    use_addresses(["127.0.0.1"])
    lines = await voiced(*CONVERSATION, apart=True)
    script = [ScriptLine(text, lines[text]) for text in CONVERSATION]
    turns: dict[str, list[dict[str, Any]]] = {}
    async with child("benchmarks.servers.model", f"--first-token={first_token_s}") as model:
        for name, thinks, speaks in AHEAD:
            agent = {
                "OFFHOOK_AGENT_KIND": "openai",
                "OFFHOOK_AGENT_MODEL": "bench",
                "OFFHOOK_AGENT_BASE_URL": f"http://127.0.0.1:{model.hello['port']}/v1",
                "OFFHOOK_AGENT_THINK_AHEAD": json.dumps(thinks),
                "OFFHOOK_AGENT_SPEAK_AHEAD": json.dumps(speaks),
            }
            async with server(None, **agent) as url:
                reports = [await ScriptedCall(url, script).run() for _ in range(CONVERSATIONS)]
            turns[name] = [asdict(turn) for report in reports for turn in report.turns]
    return turns


async def measure(interruptions: int) -> Result:
    use_addresses(["127.0.0.1"])
    result = Result()
    lines = await voiced(ASK, *AGREEMENT, *CONVERSATION, apart=True)
    lines[COUGH] = cough(1)
    recognizer = PocketSphinxRecognizer(1)
    await recognizer.start()
    try:
        async with server() as url:
            script = [ScriptLine(t, lines[t]) for t in CONVERSATION]
            call = ScriptedCall(url, script)
            report = await call.run()
            result.responses = [asdict(turn) for turn in report.turns]
            trials = Trials(url, lines, recognizer, interruptions)
            await trials.run()
            result.trials = trials.trials
    finally:
        await recognizer.close()
    return result


def _print(result: Result) -> None:
    print("conversation (ms): at the caller, and the server's own account")
    for turn in result.responses:
        spans = "  ".join(f"{s['name']} {s['ms']}" for s in turn["latency"].get("spans", []))
        print(f"  {turn['said']!r} -> {turn['heard']!r}")
        print(f"    {turn['response_ms']}  {turn['latency'].get('total_ms')}  {spans}")
    totals = [t["response_ms"] for t in result.responses if t["response_ms"]]
    print(f"  p50 {np.median(totals):.0f}  p95 {np.percentile(totals, 95):.0f}")
    cut = [t for t in result.trials if t.kind == "interruption"]
    stops = [t.stop_ms for t in cut if t.stop_ms is not None]
    after = [t.after_decision_ms for t in cut if t.after_decision_ms is not None]
    decisions = [t.decision_ms for t in cut if t.decision_ms is not None]
    off = [t.words_off for t in cut if t.words_off is not None]
    print(f"interruptions: {len(stops)} of {len(cut)} recognised as such")
    for name, values in (
        ("last packet after the caller's onset", stops),
        ("decision after the onset", decisions),
        ("last packet after the decision", after),
    ):
        if values:
            p50, p95 = np.percentile(values, (50, 95))
            print(f"  {name}: p50 {p50:.0f}  p95 {p95:.0f}  max {max(values):.0f} ms")
    print(f"  words in the context less words heard, the one cut short aside: {off}")
    errors = [e for t in cut for e in t.mark_errors_ms]
    if errors:
        p5, p50, p95 = np.percentile(errors, (5, 50, 95))
        print(
            f"  words taken for said after their end: p5 {p5:.0f}  p50 {p50:.0f}  p95 {p95:.0f} ms"
        )
    for kind in ("cough", "agreement"):
        those = [t for t in result.trials if t.kind == kind]
        print(f"{kind}: the agent went on after {sum(t.goes_on for t in those)} of {len(those)}")


def run_with_model(first_token_s: float, as_json: bool) -> int:
    turns = run_loop(responses_of_a_model(first_token_s))
    if as_json:
        print(json.dumps([{"ahead": name, "turns": of} for name, of in turns.items()]))
        return 0
    for name, of in turns.items():
        totals = [turn["response_ms"] for turn in of if turn["response_ms"]]
        p50, p95 = np.percentile(totals, (50, 95))
        print(f"begun in pauses: {name}: p50 {p50:.0f}  p95 {p95:.0f} ms")
    return 0


def run(interruptions: int, as_json: bool) -> int:
    result = run_loop(measure(interruptions))
    if as_json:
        print(json.dumps(asdict(result), indent=1))
    else:
        _print(result)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("turns", __doc__)
    parser.add_argument(
        "--interruptions",
        type=int,
        default=INTERRUPTIONS,
        metavar="N",
        help=f"replies that are interrupted (default: {INTERRUPTIONS})",
    )
    parser.add_argument(
        "--first-token",
        type=float,
        metavar="S",
        help="instead: how soon a language model answers whose first token takes so long, with "
        "and without think_ahead and speak_ahead",
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    if arguments.first_token is not None:
        return run_with_model(arguments.first_token, arguments.json)
    return run(arguments.interruptions, arguments.json)
