"""The benchmark of a CPU counts what it says."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from benchmarks.engines import cpu
from offhook.pipeline.engines.nemotron.model import checkpoint


def test_a_row_for_each_number_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    real = checkpoint.NEMOTRON_0_6B
    encoder = replace(real.encoder, hidden_size=64, layers=2, ffn=128, subsampling_channels=8)
    monkeypatch.setattr(checkpoint, "NEMOTRON_0_6B", replace(real, encoder=encoder))
    rows = list(cpu.measure(cpu.Case("nemotron", "int8", 1, (1, 3), lookahead=6)))
    assert [row["streams"] for row in rows] == [1, 3]
    assert all(row["cpu_per_s"] > 0 for row in rows)
    assert all(row["peak_mb"] >= row["mb"] > 0 for row in rows)
    assert rows[0]["instructions"]


def test_unknown_precisions_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cpu.main(["--precisions", "int8,int4"])
    assert "'int4' is none of int8, bf16, fp32" in capsys.readouterr().err


def test_a_voice_has_a_row_for_each_number_of_streams() -> None:
    rows = list(cpu.measure_voice(cpu.Case("pocket-2m", "int8", 1, (1, 2), lookahead=0)))
    assert [row["streams"] for row in rows] == [1, 2]
    assert all(row["cpu_per_s"] > 0 for row in rows)
    assert all(row["first_sound_ms"] > 0 for row in rows)
    assert all(set(row) == set(cpu.COLUMNS.split()) for row in rows)
