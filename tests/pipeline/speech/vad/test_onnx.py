"""Models that are loaded when they are needed, once, by a library that keeps to itself."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from offhook.pipeline.speech.vad.onnx_graph import (
    GRAPH,
    NODE,
    NODE_OPERATOR,
    unfused,
    wire_fields,
    wire_text,
)
from offhook.pipeline.speech.vad.onnx_io import OnnxModel, package_file
from tests.support.waiting import HANGS_S


def silero() -> OnnxModel:
    return OnnxModel(package_file("pipecat", "audio/vad/data/silero_vad.onnx"))


def test_whoever_needs_it_first_loads_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    loads = []
    session = onnxruntime.InferenceSession

    def counted(*args: object, **kwargs: object) -> object:
        loads.append(args)
        return session(*args, **kwargs)

    monkeypatch.setattr(onnxruntime, "InferenceSession", counted)
    model = silero()
    assert not loads
    inputs = {
        "input": np.zeros((1, 576), np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16_000, np.int64),
    }
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: model.run(inputs)[0][0, 0], range(8)))
    assert len(set(answers)) == 1
    assert len(loads) == 1


def test_a_model_that_is_not_there_is_noticed_before_it_is_needed() -> None:
    with pytest.raises(OSError, match=r"nothing\.onnx"):
        package_file("pipecat", "audio/vad/data/nothing.onnx")


def test_an_operator_is_not_fused_with_the_quantization_around_it() -> None:
    (folder,) = find_spec("pipecat.audio.turn.smart_turn.data").submodule_search_locations  # type: ignore[union-attr,misc]
    published = Path(folder, "smart-turn-v3.2-cpu.onnx").read_bytes()
    assert "QLinearSoftmax" in operators(published)
    assert "QLinearSoftmax" not in operators(unfused(published, "Softmax"))
    assert "QLinearMatMul" in operators(unfused(published, "Softmax"))


def operators(model: bytes) -> set[str]:
    """What ONNX Runtime makes of a model."""
    import onnxruntime

    with TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = f"{folder}/optimized.onnx"
        options.log_severity_level = 3
        onnxruntime.InferenceSession(model, options)
        made = Path(options.optimized_model_filepath).read_bytes()
    return {
        wire_text(made, node, NODE_OPERATOR)
        for graph in wire_fields(made, 0, len(made))
        if graph.number == GRAPH
        for node in wire_fields(made, graph.value, graph.end)
        if node.number == NODE
    }


def test_what_is_no_model_is_not_added_to() -> None:
    with pytest.raises(IndexError):
        unfused(b"<html>", "Softmax")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads cannot be counted")
def test_nothing_is_told_to_whoever_made_the_library() -> None:
    """Its telemetry is a thread that is there from the import on, though no model is loaded."""
    count = """
import os
import numpy
from tests.pipeline.speech.vad.test_onnx import silero
before = len(os.listdir("/proc/self/task"))
silero().load()
assert len(os.listdir("/proc/self/task")) == before
"""
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    subprocess.run(
        [sys.executable, "-c", count],
        cwd=Path(__file__).parents[4],
        env=environment,
        check=True,
        timeout=HANGS_S,
    )
