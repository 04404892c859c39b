"""Turn-taking in virtual time with real recognizers, by the data set of eot-bench, and in calls."""

import asyncio
import ctypes
import json
import threading
import wave
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from benchmarks.speech.recordings import resample
from benchmarks.speech.whisper_server import Handler, Server
from benchmarks.turn_taking import eot, turn_taking
from benchmarks.turn_taking.engines import ByUrl, Engine, PocketSphinx, Transcripts
from benchmarks.turn_taking.eot import DataError, OffhookAdapter, as_it_is, figures, rows, sound_of
from benchmarks.turn_taking.play import AFTER_MS, MS, Heard, Options, play
from benchmarks.turn_taking.script import SHORT, Utterance, room, words_of
from benchmarks.turn_taking.speak import lines_of
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.web.app.cli.caller_io import spoken, trimmed

try:
    ctypes.CDLL("libflite.so.1")
except OSError:
    pytest.skip("libflite1 is not installed", allow_module_level=True)

QUESTION = "What are your opening hours?"
PAUSE_MS = 900


async def _say(*texts: str) -> list[Pcm]:
    voice = FliteSynthesizer()
    await voice.start()
    try:
        return [resample(trimmed(await spoken(voice, t)), RATE_OUT, RATE_IN) for t in texts]
    finally:
        await voice.close()


def turn(*texts: str, asked: str = "How can I help you?") -> Utterance:
    """A caller's turn with a pause of PAUSE_MS between two texts."""
    parts, words = [room(500 * MS, 1)], []
    for number, (text, piece) in enumerate(zip(texts, asyncio.run(_say(*texts)), strict=True)):
        if number:
            parts.append(room(PAUSE_MS * MS, number))
        words += words_of(text, piece, sum(map(len, parts)))
        parts.append(piece)
    pauses = (PAUSE_MS,) * (len(texts) - 1)
    return Utterance("turn:1", "en", "plain", asked, np.concatenate(parts), tuple(words), pauses)


def played(said: Utterance, engine: Engine) -> Heard:
    [heard] = asyncio.run(play([said], Options(engine), None))
    return heard


def text_of(heard: Heard) -> str:
    return " ".join(text for _, text in heard.commits)


class Deaf(Server):
    """A server that understands the same of every sound, and needs 400 ms for it."""

    text = "I would like the"

    def __init__(self) -> None:
        ThreadingHTTPServer.__init__(self, ("127.0.0.1", 0), Handler)

    def transcribe(self, sound: bytes, language: str | None) -> tuple[dict[str, Any], float]:
        return {"text": self.text, "language": language}, 0.4


@pytest.fixture
def server() -> Iterator[Deaf]:
    server = Deaf()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def url(server: Deaf) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/v1"


def test_the_embedded_recognizer_hears_a_turn_in_virtual_time() -> None:
    engine = PocketSphinx()
    heard = played(turn(QUESTION), engine)
    assert "opening hours" in text_of(heard)
    assert engine.finals_ms
    assert heard.delay_ms is not None
    assert not heard.cut_off


def test_the_words_of_a_slow_recognizer_come_late() -> None:
    engine = PocketSphinx(latency_ms=1500)
    heard = played(turn(QUESTION), engine)
    assert set(engine.finals_ms) == {1500}
    assert heard.delay_ms is not None
    assert 1500 < heard.delay_ms < AFTER_MS


def test_a_server_by_url_is_as_late_as_it_says(url: str) -> None:
    engine = ByUrl(Transcripts(url, "whisper-1"), partials=False)
    heard = played(turn(QUESTION), engine)
    assert text_of(heard) == Deaf.text
    assert all(400 <= ms <= 420 for ms in engine.finals_ms)


def test_a_final_waits_for_the_partial_before_it(url: str) -> None:
    engine = ByUrl(Transcripts(url, "whisper-1"))
    heard = played(turn(QUESTION), engine)
    assert any(type(event).__name__ == "CallerPartial" for event in heard.events)
    assert max(engine.finals_ms) > 420


def test_a_turn_with_a_pause_is_heard_again_as_a_whole(url: str) -> None:
    said = turn("I would like to", "book a table.")
    asked = Transcripts(url, "whisper-1")
    whole = played(said, ByUrl(asked, 100, partials=False))
    parts = played(said, ByUrl(asked, 100, partials=False, whole_turns=False))
    assert (text_of(whole), text_of(parts)) == (Deaf.text, f"{Deaf.text} {Deaf.text}")


def test_who_is_cut_off_by_the_first_reply_is_heard_without_partials(
    server: Deaf, url: str
) -> None:
    server.text = "that one"
    engine = ByUrl(Transcripts(url, "whisper-1"), 100, partials=False)
    heard = played(turn("I would like to", "book a table."), engine)
    assert heard.cut_off
    assert heard.delay_ms is not None


def test_a_server_that_is_not_there_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ByUrl(Transcripts("http://127.0.0.1:9/v1", "whisper-1"), partials=False)
    with pytest.raises(openai.APIError):
        played(turn(QUESTION), engine)
    data_set(tmp_path, [turn(QUESTION)])
    with pytest.raises(SystemExit):
        turn_taking.main(["eot", str(tmp_path), "--url", "http://127.0.0.1:9/v1"])
    assert "http://127.0.0.1:9/v1 does not transcribe" in capsys.readouterr().err


# --- eot-bench ---


def row_of(number: int, said: Utterance) -> dict[str, Any]:
    """A turn as a row, its sound a file `NUMBER.wav` with 2.5 s of silence at its end."""
    words = [
        {"word": one.text, "start": one.start / RATE_IN, "end": one.end / RATE_IN}
        for one in said.words
    ]
    spans = [
        {"start": one["end"], "end": after["start"]}
        for one, after in pairwise(words)
        if after["start"] - one["end"] > 0.1
    ]
    spans.append({"start": words[-1]["end"], "end": len(said.sound) / RATE_IN + 2.5})
    messages = [{"role": "assistant", "content": said.asked}]
    about = {"id": str(number), "language": "en", "audio": f"{number}.wav"}
    return {**about, "silence_spans": spans, "messages": messages, "words": words}


def data_set(folder: Path, said: list[Utterance]) -> None:
    told = []
    for number, one in enumerate(said):
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE_IN)
            file.writeframes(np.concatenate([one.sound, room(2500 * MS, 9)]).tobytes())
        told.append(json.dumps(row_of(number, one)))
    (folder / "validation.jsonl").write_text("\n".join(told))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("eot")
    said = [turn(QUESTION), turn("I would like to", "book a table."), turn("Where are you?")]
    data_set(folder, said)
    return folder


def test_its_figures_tell_who_is_cut_off_and_who_waits(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert turn_taking.main(["eot", str(folder), "--json"]) == 0
    given, heard, silence = map(json.loads, capsys.readouterr().out.splitlines())
    assert (given["silences"], given["ends"]) == (1, 3)
    assert given["as it is: cut off %"] == heard["as it is: cut off %"] == 0
    assert 300 <= given["as it is: delay ms"] <= heard["as it is: delay ms"] <= 1300
    assert silence["delay at 5% ms"] == 1000  # the pause lasts 0.9 s
    assert given["delay at 5% ms"] < silence["delay at 5% ms"]


def test_their_harness_gets_a_row_for_each_moment_of_each_silence(folder: Path) -> None:
    row = list(rows(folder, "en"))[1]
    adapter = OffhookAdapter()
    told = asyncio.run(adapter.predict_turn(row, inference_interval=0.1))
    assert (told["id"], told["events"]) == ("1", [])
    predicted = told["prediction_rows"]
    assert {one["label"] for one in predicted if one["span_index"] == 0} == {"hold"}
    ends = [one for one in predicted if one["label"] == "eot"]
    assert [one["silence_dur"] for one in ends[:3]] == [0.0, 0.1, 0.2]
    for number, span in enumerate(row["silence_spans"]):
        last = [one for one in predicted if one["span_index"] == number][-1]
        assert last["timestamp"] == pytest.approx(span["end"], abs=0.001)
    assert ends[0]["p_eot"] < 0.5 < ends[-1]["p_eot"]
    assert max(one["p_eot"] for one in predicted if one["label"] == "hold") < 0.5
    assert [adapter.supports_language(code) for code in ("en", "ja")] == [True, False]


def test_a_sound_comes_encoded_or_as_numbers(folder: Path) -> None:
    encoded = sound_of({"bytes": (folder / "0.wav").read_bytes()})
    floats = encoded.astype(np.float32) / 32767
    same = sound_of({"bytes": None, "array": floats, "sampling_rate": RATE_IN})
    assert np.abs(same.astype(int) - encoded).max() <= 1
    half = sound_of({"array": floats[::2], "sampling_rate": RATE_IN // 2})
    assert len(half) == pytest.approx(len(encoded), abs=RATE_IN // 50)
    with pytest.raises(DataError, match="cannot be read"):
        sound_of({"bytes": b"no sound"})


def span(name: str, label: str, likely: list[float]) -> list[dict[str, Any]]:
    return [
        {"id": name, "span_index": 0, "label": label, "silence_dur": at / 10, "p_eot": p}
        for at, p in enumerate(likely)
    ]


def test_the_best_policy_within_a_budget_is_told() -> None:
    sure = span("end", "eot", [0, 0, 0.9, *[0.9] * 20])
    hold = span("hold", "hold", [0, 0, 0.3, 0.3, 0.3, 0.3])
    told = figures([*sure, *hold])
    assert (told["cut off at 300 ms %"], told["delay at 5% ms"]) == (0, 200)
    unsure = span("end", "eot", [0.2] * 20)
    told = figures([*unsure, *hold])
    assert (told["cut off at 300 ms %"], told["delay at 5% ms"]) == (100, 500)
    assert as_it_is([*sure, *hold]) == {"as it is: cut off %": 0, "as it is: delay ms": 200}


def test_data_that_cannot_be_used_are_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        turn_taking.main(["eot", str(tmp_path)])
    assert "has no .parquet and no .jsonl file" in capsys.readouterr().err
    (tmp_path / "some.jsonl").write_text('{"id": "1", "language": "en", "audio": {}}\n')
    with pytest.raises(DataError, match="a row lacks silence_spans"):
        list(rows(tmp_path, "en"))
    (tmp_path / "data.parquet").write_bytes(b"")
    if eot.find_spec("pyarrow") is None:
        with pytest.raises(DataError, match="pip install pyarrow"):
            list(rows(tmp_path, "en"))


def test_a_data_set_in_parquet_has_the_same_rows(folder: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    same = [
        {**row, "audio": {"bytes": row["audio"]["bytes"], "path": ""}} for row in rows(folder, "en")
    ]
    parquet.write_table(pyarrow.Table.from_pylist(same), tmp_path / "data.parquet")
    assert list(rows(tmp_path, "en")) == same


# --- in calls ---


@pytest.mark.slow
def test_short_answers_are_answered_in_real_calls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = {texts[0]: n for n, (_, _, texts) in enumerate(lines_of("en")) if len(texts) == 1}
    pieces = asyncio.run(_say(*SHORT))
    sounds = {f"{numbers[text]}_0": piece for text, piece in zip(SHORT, pieces, strict=True)}
    np.savez(tmp_path / "en_flite.npz", rate=np.int64(RATE_IN), **sounds)  # type: ignore[arg-type]
    assert turn_taking.main(["answers", str(tmp_path), "--calls", "4", "--json"]) == 0
    *_, total = map(json.loads, capsys.readouterr().out.splitlines())
    assert (total["calls"], total["answered"], total["in words"]) == (4, 4, 4)
