"""The network that `offhook bench sherpa` writes runs, here in a small size."""

from pathlib import Path

import pytest

pytest.importorskip("sherpa_onnx")

from benchmarks.recognition import sherpa, sherpa_graph
from offhook.pipeline.engines.sherpa.model import SherpaStreams
from offhook.pipeline.engines.sherpa.model_files import read_model


@pytest.mark.parametrize("frames", [1, 7])
def test_the_network_runs_alone_and_in_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    small = {"WIDTH": 32, "INNER": 64, "CHANNELS": 4, "PREDICTOR": 16, "LABELS": 20, "LEFT": 14}
    for name, size in small.items():
        monkeypatch.setattr(sherpa_graph, name, size)
    folder = sherpa_graph.nemotron(tmp_path, frames, layers=2)
    model = SherpaStreams(read_model(folder, "x"), 1)
    assert model.model.chunk_ms == 80 * frames
    for count in (1, 3):
        assert sherpa.measure(model, count, chunks=2)["streams"] == count
