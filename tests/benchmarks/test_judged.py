"""Voices and calls as a good ear judges them: Whisper tiny.en, where somebody has it."""

import json

import pytest

from benchmarks.calls import call_words as words
from benchmarks.calls import understood
from benchmarks.speech.recordings import speech_folder
from benchmarks.speech.whisper import missing

CALLERS = speech_folder() / "neural"
"""Sentences of callers, spoken by trained voices."""
CEILINGS = {"flite": 20, "espeak": 30}
"""Most words of the hard replies that may be wrong, in percent."""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing() or "-")]


@pytest.mark.parametrize("engine", CEILINGS)
def test_hard_replies_are_understood(
    engine: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if engine == "espeak":
        pytest.importorskip("espeakng_loader")
    monkeypatch.setenv("OFFHOOK_TTS_ENGINE", engine)
    monkeypatch.setenv("OFFHOOK_TTS_LANGUAGE", "en")
    assert understood.main(["--hard", "--judge", "whisper", "--json"]) == 0
    *rows, total = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == len(understood.hard_replies())
    assert total["wrong_percent"] <= CEILINGS[engine], [row for row in rows if row["wrong"]]


@pytest.mark.skipif(not CALLERS.is_dir(), reason="no callers with trained voices here")
@pytest.mark.parametrize("line", ["pcmu", "webrtc"])
async def test_a_caller_is_understood(line: str) -> None:
    said = words.recordings(CALLERS, "line_00.wav")
    (row,) = await words.measure(said, [line], words.Impairments("fan", 15, 0.0), "whisper")
    assert row.wrong <= 1, row.heard
