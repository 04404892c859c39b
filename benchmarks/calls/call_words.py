"""`offhook bench words`: the words that an engine gets wrong in real calls.

Recordings of callers are played to a real server: by WebRTC, by SIP in G.711, with noise, and with
packets lost. What it understood is in the timelines of its own recordings of the calls, and so is
the sound that reached it. A judge that hears these recordings says what a good ear makes of the
same sound:

    offhook bench words --engine nemotron --judge whisper
    offhook bench words --engine openai --url http://gpu:8000/v1 --lines pcmu

FOLDER has 16 kHz mono recordings and their words, in an index.json ([{"file": …, "text": …}, …])
or in rows "| file | words |" of its README.md. The words are English. What else the engine needs is
in the configuration or the environment, as for the server (OFFHOOK_ASR_MODEL). Whisper is started
from the folder named by OFFHOOK_WHISPER, with the Python named by OFFHOOK_WHISPER_PYTHON.
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import av
import numpy as np

from benchmarks.calls.call_turns import server
from benchmarks.command import command
from benchmarks.processes.own_server import free_port
from benchmarks.processes.process import run as run_loop
from benchmarks.speech.noises import SPEECH_DBFS, STEADY, at_level, mixed
from benchmarks.speech.recordings import read_16k, references, resample, speech_folder
from benchmarks.speech.spoken_words import spoken_words, word_errors
from benchmarks.speech.transcript import recognise
from benchmarks.speech.whisper import missing, whisper
from benchmarks.table import Table, progress
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.speech.engines import names
from offhook.pipeline.speech.openai.recognizer_io import OpenAiRecognizer
from offhook.pipeline.speech.recognizer import StreamOptions
from offhook.signaling.peer_io import use_addresses
from offhook.web.app.callers.way import Way
from offhook.web.app.cli.caller_io import ScriptedCall, ScriptLine
from offhook.web.config.engines import AUTOMATIC, OPENAI

WHISPER = "whisper"
LINES = ("webrtc", "pcmu", "noise", "loss")
LEAD_S = 2.0
"""Time in s on the line before the caller speaks, in which noise is measured,"""
TAIL_S = 2.0
"""and after it."""
SETTLED_S = 1.5
"""No further words for this long after that: the turn is over."""
WORDS_S = 60.0
"""The longest wait for words after that, on a machine that is busy."""
LOAD_S = 600.0
"""Time limit in s for the engine to load."""
TRUNKS = [{"name": "loopback", "addresses": ["127.0.0.0/8"]}]
HEARD_AS = StreamOptions(language="en", live=False)


@dataclass(frozen=True)
class Recording:
    name: str
    said: str
    pcm: Pcm
    """At 16 kHz."""


@dataclass
class Row:
    line: str
    recording: str
    said: str
    heard: str
    judged: str | None = None

    @property
    def words(self) -> int:
        return len(spoken_words(self.said))

    @property
    def wrong(self) -> int:
        return word_errors(self.heard, self.said)

    @property
    def judged_wrong(self) -> int:
        return word_errors(self.judged or "", self.said)


@dataclass(frozen=True)
class Impairments:
    noise: str
    snr_db: float
    loss: float
    """Share of the caller's packets, 0..1."""


def recordings(folder: Path, only: str = "*") -> list[Recording]:
    """Returns those whose file matches a pattern."""
    return [
        Recording(path.name, text, read_16k(path))
        for path, text in references(folder).items()
        if fnmatch(path.name, only)
    ]


def on_line(pcm: Pcm, noise: str = "", snr_db: float = 0.0) -> Pcm:
    """Returns 24 kHz sound with time before and after the speech, and steady noise so many dB
    below it."""
    sound = at_level(pcm, SPEECH_DBFS)
    sound = np.pad(sound, (round(LEAD_S * RATE_IN), round(TAIL_S * RATE_IN)))
    steady = STEADY[noise](len(sound), np.random.default_rng(1)) if noise else None
    return resample(mixed(sound, steady, snr_db), RATE_IN, RATE_OUT)


class Caller(ScriptedCall):
    """Says one thing, and waits until the server has understood it."""

    def __init__(self, url: str, said: ScriptLine, folder: Path, loss: float) -> None:
        super().__init__(url, [said], codecs=("pcmu",))
        self.leg.way = Way(loss, chance=Random(said.label))
        self._said = said
        self._folder = folder
        self._earlier = {*folder.glob("*.jsonl")}
        self._timeline: Path | None = None

    async def _converse(self) -> None:
        await self._say(self._said)
        heard, since = self.heard, monotonic()
        until = since + WORDS_S
        while monotonic() < (since + SETTLED_S if heard else until):
            await asyncio.sleep(0.1)
            if self.heard != heard:
                heard, since = self.heard, monotonic()

    @property
    def heard(self) -> str:
        return " ".join(event["text"] for event in self._events() if event["kind"] == "caller_turn")

    def _events(self) -> Iterator[dict[str, Any]]:
        """The server's account of this call, as far as it is written."""
        if self._timeline is None:
            self._timeline = next(iter({*self._folder.glob("*.jsonl")} - self._earlier), None)
        if self._timeline is not None:
            whole, _, _ = self._timeline.read_bytes().rpartition(b"\n")
            yield from map(json.loads, whole.splitlines())

    async def recorded(self) -> Pcm:
        """Returns what reached the server, 16 kHz samples, once it is written."""
        while not any(event["kind"] == "end" for event in self._events()):
            await asyncio.sleep(0.1)
        assert self._timeline is not None
        return left_16k(self._timeline.with_suffix(".ogg"))


def left_16k(path: Path) -> Pcm:
    """Returns the left channel of a file."""
    resampler = av.AudioResampler(format="s16", layout="stereo", rate=RATE_IN)
    with av.open(str(path)) as container:
        frames = [*container.decode(audio=0), None]
        blocks = [block.to_ndarray() for frame in frames for block in resampler.resample(frame)]
    return np.concatenate(blocks, axis=1)[0, ::2].astype(np.int16)


@asynccontextmanager
async def ear(name: str) -> AsyncIterator[str]:
    """Yields the URL of Whisper, started for it, or of another server; "" for none."""
    if name == WHISPER:
        async with whisper() as url:
            yield url
    else:
        yield name


def settings_of(engine: str, url: str) -> dict[str, str]:
    """Returns the variables of a server's environment."""
    if engine == WHISPER:
        asked = {"LANGUAGE": "en", "PARTIALS": "false"}
        engine = OPENAI
    else:
        asked = {} if url or engine in AUTOMATIC else {"PRELOAD": "true"}
    asked |= {"ENGINE": engine} | ({"URL": url} if url else {})
    return {f"OFFHOOK_ASR_{key}": value for key, value in asked.items()}


async def measure(
    said: Sequence[Recording],
    lines: Sequence[str],
    how: Impairments,
    engine: str,
    url: str = "",
    judge: str = "",
) -> list[Row]:
    use_addresses(["127.0.0.1"])
    rows = []
    async with ear(WHISPER if engine == WHISPER else url) as heard_at, ear(judge) as judge_at:
        good_ear = OpenAiRecognizer(judge_at) if judge_at else None
        with tempfile.TemporaryDirectory() as name:
            folder, port = Path(name), free_port()
            environment = settings_of(engine, heard_at) | {
                "OFFHOOK_SERVER_MAX_LATENESS_MS": "0",
                "OFFHOOK_AGENT_KIND": "silent",
                "OFFHOOK_RECORDING_ENABLED": "true",
                "OFFHOOK_RECORDING_DIRECTORY": name,
                "OFFHOOK_SIP_UDP": str(port),
                "OFFHOOK_SIP_TCP": str(port),
                "OFFHOOK_SIP_TRUNKS": json.dumps(TRUNKS),
            }
            async with server(None, LOAD_S, **environment) as at, asyncio.TaskGroup() as judging:
                for line in lines:
                    to = f"sip:100@127.0.0.1:{port}" if line == "pcmu" else at
                    for one in said:
                        call = _caller(to, line, one, folder, how)
                        await call.run()
                        rows.append(Row(line, one.name, one.said, call.heard))
                        progress(f"{line} {one.name}: {rows[-1].wrong} of {rows[-1].words} wrong")
                        if good_ear is not None:
                            judging.create_task(_judge(good_ear, call, rows[-1]))
        if good_ear is not None:
            await good_ear.close()
    return rows


def _caller(url: str, line: str, said: Recording, folder: Path, how: Impairments) -> Caller:
    pcm = on_line(said.pcm, how.noise if line == "noise" else "", how.snr_db)
    loss = how.loss if line == "loss" else 0.0
    return Caller(url, ScriptLine(said.name, pcm), folder, loss)


async def _judge(judge: OpenAiRecognizer, call: Caller, row: Row) -> None:
    row.judged = (await recognise(judge, await call.recorded(), HEARD_AS)).text


def show(rows: Sequence[Row], engine: str, judge: str, texts_too: bool) -> None:
    if texts_too:
        for row in rows:
            print(f"{row.line} {row.recording}: {row.said}")
            print(f"  {row.wrong:2} wrong: {row.heard}")
            if row.judged is not None:
                print(f"  {row.judged_wrong:2} wrong, judge: {row.judged}")
    note = engine + (f", and {judge} with the same sound" if judge else "")
    columns = "line calls words wrong_percent right"
    columns += " judge_percent judge_right" if judge else ""
    table = Table("words", note, columns, False)
    for line in dict.fromkeys(row.line for row in rows):
        of = [row for row in rows if row.line == line]
        words = sum(row.words for row in of)
        table.row(
            line=line,
            calls=len(of),
            words=words,
            wrong_percent=100 * sum(row.wrong for row in of) / words,
            right=sum(not row.wrong for row in of),
            judge_percent=100 * sum(row.judged_wrong for row in of) / words,
            judge_right=sum(not row.judged_wrong for row in of),
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("words", __doc__)
    add = parser.add_argument
    add(
        "folder",
        nargs="?",
        type=Path,
        default=speech_folder(),
        help="default: that of OFFHOOK_SPEECH",
    )
    add("--only", default="*", metavar="PATTERN", help="files, as 'line_*'")
    add("--engine", choices=(*names("asr"), *AUTOMATIC, WHISPER), default="pocketsphinx")
    add("--url", default="", help="of the engine's server or worker")
    add("--judge", default="", help="whisper, or the URL of an OpenAI-compatible server")
    add("--lines", default=",".join(LINES), help=f"of {', '.join(LINES)}")
    add("--noise", choices=STEADY, default="fan")
    add("--snr", type=float, default=15.0, metavar="DB", help="of the noise (15)")
    add("--loss", type=float, default=3.0, metavar="PERCENT", help="of the caller's packets (3)")
    add("--texts", action="store_true", help="show what was said and heard")
    add("--json", action="store_true", help="a JSON line a call")
    a = parser.parse_args(argv)
    if WHISPER in (a.engine, a.judge) and (lacking := missing()):
        parser.error(lacking)
    if not a.folder.is_dir():
        parser.error(f"no recordings: name their folder (not {a.folder})")
    lines = a.lines.split(",")
    if unknown := {*lines} - {*LINES}:
        parser.error(f"no line is called {unknown.pop()}")
    how = Impairments(a.noise, a.snr, a.loss / 100)
    said = recordings(a.folder, a.only)
    rows = run_loop(measure(said, lines, how, a.engine, a.url, a.judge))
    if a.json:
        for row in rows:
            judged = {"judged_wrong": row.judged_wrong} if a.judge else {}
            print(json.dumps(asdict(row) | {"words": row.words, "wrong": row.wrong} | judged))
    else:
        show(rows, a.engine, a.judge, a.texts)
    return 0
