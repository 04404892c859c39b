"""Data sets of the schema of LiveKit's eot-bench (`livekit/eot-bench-data`, which one has to have),
and an adapter by which their harness runs offhook's turn-taking:

    eot-harness predict-streaming --adapter benchmarks.turn_taking.eot:OffhookAdapter …

A row is a caller's turn with its silences, of which the last is the end of the turn. In each, the
bench asks every 100 ms how likely the end is, and tries all policies of three numbers: a threshold,
the least silence until one may answer, and the most. Its figures are the best of these: the share
of other silences that are cut off if the mean delay at the end may be so long, and the reverse.

offhook wants a silence of a certain length, which depends on what it knows by then. So its answer
is silence / (silence + what is wanted): one half is where it ends the turn, and other thresholds
are more or less patient offhooks. So that each silence is heard to its end, the turns are played
to a server that waits for seconds. The turn is given to the agent earlier than the agent may be
heard, because callers who go on take it back: there are figures of both, and the adapter has the
later one.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import av
import numpy as np

from benchmarks.turn_taking.engines import MS, Engine, KnownWords
from benchmarks.turn_taking.play import Heard, Options, Waiting, play
from benchmarks.turn_taking.script import LEAD_MS, Utterance, Word, room
from benchmarks.turn_taking.signals import PATIENT, PATIENT_MS
from offhook.media.codecs.downmix import MonoConverter
from offhook.media.pcm import RATE_IN, Pcm

LEAST_MS = 100
"""Shortest silence that is asked about, and the time from one question to the next."""
EXACT_S = 1e-6
"""What two times may differ by and be the same."""
HOLD_MS = (200, 5000)
"""Shortest and longest silence within a turn that counts."""
LAG_MS = 500
"""A word is known so long after its end."""
ENDS = 0.5
"""Probability from which offhook ends a turn."""
DELAYS_MS = range(200, 1001, 100)
TIMEOUTS_MS = range(1000, 3501, 500)
THRESHOLDS = np.arange(101) / 100
DELAY_BUDGETS_MS = (300, 600)
CUT_BUDGETS = (0.05, 0.1)
LANGUAGES = ("en", "de", "es", "fr")
"""Languages whose words say something to offhook; of the others it hears the sound alone."""

Row = Mapping[str, Any]
Prediction = Mapping[str, Any]
"""A row of their harness's predictions."""


class DataError(ValueError):
    """Raised for a data set that cannot be read; the message says what to do."""


def rows(path: Path, language: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a language in a file or folder: Parquet, or JSON lines whose `audio` is
    the path of a sound, from their folder on. Raises DataError."""
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    files = files or sorted(path.rglob("*.jsonl"))
    if not files:
        raise DataError(f"{path} has no .parquet and no .jsonl file: download the data set to it")
    for file in files:
        for row in _parquet(file) if file.suffix == ".parquet" else _lines(file):
            if lacking := {"id", "language", "audio", "silence_spans"} - row.keys():
                raise DataError(f"{file}: a row lacks {', '.join(sorted(lacking))}")
            if row["language"] == language and row["silence_spans"]:
                yield row


def _parquet(file: Path) -> Iterator[dict[str, Any]]:
    if find_spec("pyarrow") is None:
        raise DataError(f"{file} needs pyarrow: pip install pyarrow")
    for batch in import_module("pyarrow.parquet").ParquetFile(file).iter_batches(64):
        yield from batch.to_pylist()


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    for line in filter(str.strip, file.read_text().splitlines()):
        row = json.loads(line)
        if isinstance(row.get("audio"), str):
            row["audio"] = {"bytes": (file.parent / row["audio"]).read_bytes()}
        yield row


def sound_of(audio: Row) -> Pcm:
    """Returns the sound of a row at 16 kHz: encoded `bytes`, or an `array` of floats with its
    `sampling_rate`. Raises DataError."""
    if audio.get("bytes") is None:
        array = np.asarray(audio["array"], np.float32) * 32767
        rate = int(audio["sampling_rate"])
        frame = av.AudioFrame.from_ndarray(array.astype(np.int16)[None], "s16", "mono")
        frame.rate = rate
        return _mono([frame])
    try:
        with av.open(io.BytesIO(audio["bytes"]), "r") as container:
            return _mono(container.decode(audio=0))
    except (av.FFmpegError, IndexError) as error:
        raise DataError(f"a row's audio cannot be read: {error}") from error


def _mono(frames: Any) -> Pcm:
    mono: MonoConverter | None = None
    blocks: list[Pcm] = []
    for frame in frames:
        mono = mono or MonoConverter(frame, RATE_IN)
        blocks += mono.convert(frame)
    if mono is not None:
        blocks += mono.convert(None)
    return np.concatenate(blocks) if blocks else np.zeros(0, np.int16)


def utterance_of(row: Row) -> Utterance:
    """Returns a row as a turn, behind LEAD_MS of a quiet room."""
    lead = LEAD_MS * MS
    end = _ms(row["silence_spans"][-1]["start"]) * MS
    # A word is known by its end, as their harness counts.
    ends = [(one["word"].strip(), lead + _ms(one["end"]) * MS) for one in row.get("words") or ()]
    words = [Word(text, at, at) for text, at in ends if text]
    asked = [one["content"] for one in row.get("messages") or () if one["role"] == "assistant"]
    sound = np.concatenate([room(lead, 0), sound_of(row["audio"])])
    # Without words the recognizer that knows them hears that somebody has spoken.
    known = tuple(words) or (Word("", lead, lead + end),)
    asks = asked[-1] if asked else ""
    return Utterance(str(row["id"]), row["language"], "turn", asks, sound, known)


def _ms(seconds: float) -> int:
    return round(1000 * float(seconds))


GIVEN, HEARD = attrgetter("given_ms"), attrgetter("heard_ms")
Wanted = Callable[[Waiting], int]
"""Returns which silence in ms is wanted."""


def predictions(
    row: Row, heard: Heard, wanted: Wanted, every_ms: int = LEAST_MS
) -> list[dict[str, Any]]:
    """Returns how likely the end of the turn is at each moment of each silence, as their harness
    has it."""
    told = []
    for number, span in enumerate(row["silence_spans"]):
        start, end = _ms(span["start"]), _ms(span["end"])
        if span["end"] - span["start"] < LEAST_MS / 1000 - EXACT_S:
            continue
        times = list(range(start, end + 1, every_ms))
        known = [one for one in heard.waitings if start < one.at_ms - LEAD_MS <= end]
        for at in times if times[-1] == end else [*times, end]:
            by_then = [one for one in known if one.at_ms - LEAD_MS <= at]
            silence = at - start
            told.append(
                {
                    "id": str(row["id"]),
                    "language": row["language"],
                    "span_index": number,
                    "timestamp": at / 1000,
                    "silence_dur": silence / 1000,
                    "p_eot": silence / (silence + wanted(by_then[-1])) if by_then else 0.0,
                    "label": "eot" if number == len(row["silence_spans"]) - 1 else "hold",
                }
            )
    return told


def as_it_is(told: Sequence[Prediction]) -> dict[str, Any]:
    """Returns what becomes of the turns if each silence lasts as long as offhook wants: the share
    of silences within turns that are cut off, and the mean delay at ends, of up to PATIENT_MS."""
    ends, holds = [], []
    for span in _spans(told):
        over = (_ms(one["silence_dur"]) for one in span if one["p_eot"] >= ENDS)
        answered, length = next(over, PATIENT_MS), _ms(span[-1]["silence_dur"])
        if span[0]["label"] == "eot":
            ends.append(answered)
        elif HOLD_MS[0] <= length <= HOLD_MS[1]:
            holds.append(answered < length)
    return {
        "as it is: cut off %": _round(100 * float(np.mean(holds))),
        "as it is: delay ms": round(float(np.mean(ends))),
    }


def _spans(told: Sequence[Prediction]) -> list[list[Prediction]]:
    spans: dict[tuple[Any, int], list[Prediction]] = {}
    for one in told:
        spans.setdefault((one["id"], one["span_index"]), []).append(one)
    return list(spans.values())


def figures(told: Sequence[Prediction]) -> dict[str, Any]:
    """Returns the bench's figures of predictions: the shares cut off in per cent, and the delays in
    ms; None where no policy is within the budget. Raises DataError."""
    spans = _spans(told)
    ends = [_crossings(span) for span in spans if span[0]["label"] == "eot"]
    holds = [
        (_crossings(span), length)
        for span in spans
        if span[0]["label"] == "hold"
        and HOLD_MS[0] <= (length := _ms(span[-1]["silence_dur"])) <= HOLD_MS[1]
    ]
    if not ends or not holds:
        raise DataError("the data set needs turns with silences within them, and ends of turns")
    lengths = np.array([length for _, length in holds])
    return _best(np.array(ends), np.array([crossings for crossings, _ in holds]), lengths)


def _crossings(span: Sequence[Prediction]) -> list[float]:
    """Returns after how many ms of a silence each threshold is exceeded."""
    likely = np.array([one["p_eot"] for one in span])
    silence = np.array([_ms(one["silence_dur"]) for one in span])
    over = likely[None] > THRESHOLDS[:, None]
    first = np.where(over, silence[None], np.inf).min(axis=1)
    return [float(ms) for ms in first]


def _best(ends: Any, holds: Any, lengths: Any) -> dict[str, Any]:
    points = []
    for least in DELAYS_MS:
        for most in TIMEOUTS_MS:
            answered = np.minimum(np.maximum(ends, least), most)
            until = np.minimum(np.maximum(holds, least), most)
            cut = (lengths[:, None] > until).mean(axis=0)
            points.append(np.stack([answered.mean(axis=0), cut], axis=1))
    delays, cuts = np.concatenate(points).T
    told: dict[str, Any] = {"silences": len(lengths), "ends": len(ends)}
    for budget in DELAY_BUDGETS_MS:
        within = cuts[delays <= budget]
        told[f"cut off at {budget} ms %"] = _round(100 * within.min()) if len(within) else None
    for share in CUT_BUDGETS:
        short = delays[cuts <= share]
        told[f"delay at {share:.0%} ms"] = round(short.min()) if len(short) else None
    return told


def _round(value: float) -> float:
    return round(float(value), 1)


def silence_alone(told: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Returns the predictions of a policy that knows nothing but how long it is silent."""
    return [{**one, "p_eot": min(1.0, one["silence_dur"] / 10)} for one in told]


def patient(engine: Engine | None = None) -> Options:
    """Returns how turns are played to their ends, by default with the words of the data set."""
    return Options(engine or KnownWords(lag_ms=LAG_MS), settings=PATIENT)


async def bench(path: Path, language: str, engine: Engine | None) -> list[dict[str, Any]]:
    """Returns the figures of offhook, and of silence alone. Raises DataError."""
    data = list(rows(path, language))
    heard = await play([utterance_of(row) for row in data], patient(engine), None)
    figured = []
    for name, wanted in (("the turn is given", GIVEN), ("the agent is heard", HEARD)):
        told = [
            one for row, of in zip(data, heard, strict=True) for one in predictions(row, of, wanted)
        ]
        figured.append({"until": name, **figures(told), **as_it_is(told)})
    return [*figured, {"until": "so much silence", **figures(silence_alone(told))}]


class OffhookAdapter:
    """A streaming adapter of their harness."""

    adapter_id = "offhook"
    display_name = "offhook"
    concurrency = 1

    def supports_language(self, lang_code: str) -> bool:
        return lang_code in LANGUAGES

    async def predict_turn(self, row: Row, *, inference_interval: float = 0.1) -> dict[str, Any]:
        turn = utterance_of(row)
        [heard] = await play([turn], patient(), None)
        return {
            "id": row["id"],
            "audio_sec": len(turn.sound) / RATE_IN - LEAD_MS / 1000,
            "events": [],
            "prediction_rows": predictions(row, heard, HEARD, _ms(inference_interval)),
        }
