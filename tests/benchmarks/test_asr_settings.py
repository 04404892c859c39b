"""The benchmark of settings runs here, and the plain layers it compares with are the model's."""

import json

import pytest

torch = pytest.importorskip("torch")

from benchmarks.recognition import (  # noqa: E402
    asr_alternatives,
    asr_settings,
)
from benchmarks.recognition.asr_settings import SETTINGS, TINY  # noqa: E402
from benchmarks.recognition.asr_timing import Bench, decode_step, windows  # noqa: E402
from offhook.pipeline.engines.qwen3_asr.runner import WINDOW_TOKENS  # noqa: E402


@pytest.fixture(autouse=True)
def single():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(before)


@pytest.fixture
def bench():
    made = Bench(TINY, torch.device("cpu"), streams=3, repeats=2)
    for parameter in made.model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, 0.2)
    return made


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
def test_every_setting_has_its_line(capsys):
    assert asr_settings.main(["--model", "tiny", "--device", "cpu"]) == 0
    said = lines(capsys)
    assert said[0]["torch"] == torch.__version__
    assert [n for n in dict.fromkeys(s["setting"] for s in said[1:-1])] == [
        s.name for s in SETTINGS
    ]
    assert not [s for s in said if "error" in s]
    timed = [s for s in said if "ratio" in s]
    assert {"gc.freeze", "no empty_cache, no gc", "a thread of its own"} <= {
        s["setting"] for s in timed
    }
    for line in timed:
        assert line["ratio"] == pytest.approx(line["off_ms"] / line["on_ms"], rel=0.01)


def test_one_that_breaks_leaves_the_rest(monkeypatch, capsys, bench):
    def breaks(bench):
        raise RuntimeError("CUDA error: no kernel image")
        yield

    def late(bench):
        raise AssertionError("begun")
        yield

    settings = (
        asr_settings.Setting("one", breaks, gpu=False),
        asr_settings.Setting("two", asr_settings.own_thread, gpu=False),
        asr_settings.Setting("three", late, gpu=False, seconds=1000),
    )
    monkeypatch.setattr(asr_settings, "SETTINGS", settings)
    asr_settings.measure(bench)
    one, two, three = lines(capsys)
    assert one == {"setting": "one", "error": "RuntimeError: CUDA error: no kernel image"}
    assert two["ratio"] > 0
    assert "may take 1000" in three["skipped"]


def test_the_encoder_to_be_exported_is_the_encoder(bench):
    x, starts = windows(bench, [WINDOW_TOKENS] * 3)
    dense = asr_alternatives.DenseEncoder(bench.model.encoder)(x.view(3, WINDOW_TOKENS, -1))
    ours = bench.model.encoder(x, starts, WINDOW_TOKENS)
    assert ours.abs().max() > 0.1
    torch.testing.assert_close(dense.flatten(0, 1), ours)


def test_the_decoder_layer_to_be_compiled_is_the_decoders(bench):
    x, turn, batch, pages = decode_step(bench)
    for cache in pages:
        cache.normal_()
    layer = bench.model.decoder.layers[0]
    ours = x.clone()
    layer(ours, turn, batch, pages)
    plain = asr_alternatives.plain_decoder_layer(layer, x, turn, batch, pages)
    assert (ours - x).abs().max() > 0.1
    torch.testing.assert_close(plain, ours)


def test_tf32_leaves_torch_as_it_was(bench):
    before = torch.get_float32_matmul_precision()
    rows = list(asr_settings.tf32(bench))
    assert torch.get_float32_matmul_precision() == before == "highest"
    assert rows[0].more["relative_error"] < rows[0].more["relative_error_of_bf16"]
