"""`offhook align`: the words of a known text, with their times in a recording."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from offhook.web.app.cli import main as cli
from tests.web.speech_api.recordings import tone, wav


@pytest.fixture
def aligner(tmp_path: Path) -> str:
    """A tiny random model."""
    pytest.importorskip("torch")
    from tests.pipeline.engines.shared.model import tiny

    untied = replace(tiny.CONFIG.decoder, tied=False)
    tiny.write_original(tmp_path, replace(tiny.CONFIG, classes=60, decoder=untied))
    return str(tmp_path)


def test_a_text_is_aligned(
    aligner: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, text = tmp_path / "a.wav", tmp_path / "a.txt"
    file.write_bytes(wav(tone(2)))
    text.write_text("the cat sat\non the mat\n")
    line = ["align", str(file), "--model", aligner, "--device", "cpu", "--language", "en"]
    assert cli.main([*line, "--text-file", str(text)]) == 0
    rows = [row.split("\t") for row in capsys.readouterr().out.splitlines()]
    assert [word for _, _, word in rows] == ["the", "cat", "sat", "on", "the", "mat"]
    times = [float(time) for start, end, _ in rows for time in (start, end)]
    assert times == sorted(times)
    assert times[-1] <= 2
    assert cli.main([*line, "--text", "the cat", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["text"], found["duration"], len(found["words"])) == ("the cat", 2.0, 2)
    assert cli.main([*line, "--text", "the cat", "--format", "srt"]) == 0
    assert "the cat" in capsys.readouterr().out
    line[-1] = "sv"
    assert cli.main([*line, "--text", "hej"]) == 1
    assert "words of 'sv' cannot be aligned" in capsys.readouterr().err
