"""How many streams a GPU is said to hold."""

import json
import re

import pytest

torch = pytest.importorskip("torch")

from offhook.pipeline.engine import gpu_io  # noqa: E402
from offhook.pipeline.engine.capacity import (  # noqa: E402
    MAX_FILES,
    MAX_STREAMS,
    MEMORY_SHARE,
    PAGES_PER_STREAM,
    STREAM_BYTES,
    capacity,
    nemotron_capacity,
)
from offhook.pipeline.engine.pages import PAGE_SIZE  # noqa: E402
from offhook.pipeline.models.nemotron.checkpoint import (  # noqa: E402
    NEMOTRON_0_6B,
    NEMOTRON_3_5_0_6B,
)
from offhook.pipeline.models.nemotron.model import Nemotron  # noqa: E402
from offhook.pipeline.models.qwen3.body import KVCache  # noqa: E402
from offhook.pipeline.models.qwen3_asr.model import (  # noqa: E402
    QWEN3_ASR_0_6B,
    AsrConfig,
    Qwen3Asr,
)
from offhook.pipeline.speech.recognizer import EngineError  # noqa: E402
from tests.pipeline.models import tiny  # noqa: E402

GIB = 2**30


def test_what_is_said_to_fit_fits():
    """Counted from the tensors themselves."""
    free = 6 * GIB
    streams, pages = capacity(free, QWEN3_ASR_0_6B.decoder)
    cache = KVCache(QWEN3_ASR_0_6B.decoder, pages, PAGE_SIZE, "meta", torch.bfloat16)
    used = cache.k.nbytes + cache.v.nbytes + (streams + MAX_FILES) * STREAM_BYTES
    assert 0.95 * MEMORY_SHARE * free < used < 1.01 * MEMORY_SHARE * free
    assert pages == (streams + MAX_FILES) * PAGES_PER_STREAM + 1


def test_no_more_than_the_most_however_much_memory():
    assert capacity(10_000 * GIB, QWEN3_ASR_0_6B.decoder)[0] == MAX_STREAMS


def test_a_full_gpu_is_told_what_it_lacks():
    with pytest.raises(EngineError, match=r"0\.5 GiB of GPU memory are free, 1\.\d GiB"):
        capacity(GIB // 2, QWEN3_ASR_0_6B.decoder)


def test_the_weights_are_taken_off_first():
    with torch.device("meta"):
        weights = 2 * sum(p.numel() for p in Qwen3Asr(QWEN3_ASR_0_6B).parameters())
    alone, _ = capacity(8 * GIB - weights, QWEN3_ASR_0_6B.decoder)
    assert gpu_io._streams("Qwen/Qwen3-ASR-0.6B", 8 * GIB) == (alone, "")
    streams, lacks = gpu_io._streams("Qwen/Qwen3-ASR-0.6B", GIB)
    assert streams == 0
    assert re.search(r"GiB of GPU memory are free, .* needed", lacks)


def test_a_model_in_a_folder_is_as_large_as_its_config_says(tmp_path):
    folder = tiny.write_original(tmp_path)
    config = AsrConfig.from_json(json.loads((folder / "config.json").read_text()))
    assert gpu_io._streams(str(folder), 8 * GIB) == (capacity(8 * GIB, config.decoder)[0], "")
    (folder / "config.json").write_text("{")
    assert gpu_io._streams(str(folder), 8 * GIB)[0] == 0


@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("nvidia/nemotron-speech-streaming-en-0.6b", NEMOTRON_0_6B),
        ("nvidia/nemotron-3.5-asr-streaming-0.6b", NEMOTRON_3_5_0_6B),
    ],
)
def test_nemotron_is_counted_by_its_caches(model, config):
    with torch.device("meta"):
        weights = 2 * sum(p.numel() for p in Nemotron(config).parameters())
    alone = nemotron_capacity(4 * GIB - weights, config)
    assert 1 < alone < MAX_STREAMS
    assert gpu_io._streams(model, 4 * GIB) == (alone, "")
    streams, lacks = gpu_io._streams(model, GIB)
    assert streams == 0
    assert re.search(r"GiB of GPU memory are free, .* needed", lacks)


def test_nemotron_in_a_folder_is_as_large_as_its_config_says(tmp_path):
    names = "tests.pipeline.models.nemotron.tiny"
    tiny_nemotron = pytest.importorskip(names, exc_type=ImportError)
    folder = tiny_nemotron.write(tmp_path)
    most = nemotron_capacity(GIB, tiny_nemotron.ENGLISH)
    assert gpu_io._streams(str(folder), GIB) == (most, "")
    (folder / "processor_config.json").unlink()
    assert "it has no processor_config.json" in gpu_io._streams(str(folder), GIB)[1]


def test_an_unknown_model_is_not_guessed():
    assert gpu_io._streams("someone/asr-9B", 8 * GIB) == (
        0,
        "how large someone/asr-9B is shows when it is downloaded",
    )
