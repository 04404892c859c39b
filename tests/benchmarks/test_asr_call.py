"""The benchmark of real calls into Qwen3-ASR, on a tiny model and for a moment."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from benchmarks.calls.asr_call import Asked, Result, Turn, bench
from tests.pipeline.engines.shared.model import tiny

DECODER = replace(tiny.CONFIG.decoder, vocab_size=151_936)
CONFIG = replace(tiny.CONFIG, decoder=DECODER, eos_ids=(151_645,))
"""Tiny, with the published control tokens."""


@pytest.mark.usefixtures("loopback")
@pytest.mark.slow
async def test_lines_over_webrtc_become_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFHOOK_SPEECH", "/none")
    (row,) = await bench(CONFIG, "tiny", [1], 2.1, "cpu")
    assert row["lines"] == row["answered"] == 1
    assert row["asr_final_ms"]["max"] < row["turn_decided_ms"]["max"]
    assert sum(part["max"] for part in row["parts_ms"].values()) == pytest.approx(
        row["asr_final_ms"]["max"], abs=0.1
    )
    assert row["partial_ms"]["p50"] > 0


def test_a_turn_belongs_to_the_line_before_it() -> None:
    def turn(at: float) -> Turn:
        return Turn(at, Asked(at - 0.2, 30.0), at - 0.1, {"speech_end": 120})

    result = Result()
    lines = [[1.0, 2.0], [4.0, 6.0], [8.0, 9.0], [11.0]]
    result.add(lines, [turn(2.5), turn(5.0), turn(6.4), turn(9.5)], until=8.5)
    assert (result.lines, result.answered, result.split) == (2, 2, 1)
    assert result.turn_decided == pytest.approx([500, 400])
    assert result.asr_final == pytest.approx([400, 300])
    assert result.parts["silence"] == pytest.approx([270, 170])
    assert result.parts["recognizer"] == pytest.approx([100, 100])
