"""Which files of a folder are the model, and what is told of those that cannot be used."""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from benchmarks.recognition import onnx_writer
from benchmarks.recognition.onnx_writer import FLOAT, constant, node, number, part, value
from offhook.pipeline.engines.sherpa import model_files
from offhook.pipeline.engines.sherpa.model_files import find_model, languages_in, read_model
from offhook.pipeline.engines.sherpa.onnx_header import read_header
from offhook.pipeline.speech.errors import EngineError
from tests.support import tiny_sherpa
from tests.support.hub_stand_in import Hub, running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_sherpa.zipformer2(tmp_path / "model")


@pytest.mark.parametrize(
    ("make", "family", "chunk_ms", "frame_ms"),
    [
        (tiny_sherpa.zipformer2, "zipformer2 transducer", 320, 40),
        (tiny_sherpa.zipformer2_ctc, "zipformer2 CTC", 320, 40),
        (tiny_sherpa.nemo, "NeMo transducer", 160, 80),
    ],
)
def test_families_are_known_by_their_files(
    tmp_path: Path, make: Callable[[Path], Path], family: str, chunk_ms: int, frame_ms: int
) -> None:
    model = read_model(make(tmp_path), "some/model-de")
    assert (model.family, model.chunk_ms, model.frame_ms) == (family, chunk_ms, frame_ms)
    assert model.describe() == f"{family}, chunks of {chunk_ms} ms, languages: de"
    assert not model.is_large


def test_a_multilingual_model_has_its_languages_in_it(tmp_path: Path) -> None:
    folder = tiny_sherpa.nemo(tmp_path, languages={"auto": 0, "en-US": 1, "de_DE": 2})
    model = read_model(folder, "nemotron-3.5-en-de")
    assert (model.languages, model.prompts) == ((), {"en-us", "de-de"})


def test_8_bits_are_preferred_but_for_the_decoder(folder: Path) -> None:
    for path in list(folder.glob("*.onnx")):
        (folder / f"{path.stem}.int8.onnx").write_bytes(path.read_bytes())
    files = read_model(folder, "x").files
    assert {part: path.name for part, path in files.items()} == {
        "encoder": "encoder.int8.onnx",
        "decoder": "decoder.onnx",
        "joiner": "joiner.int8.onnx",
    }


def test_of_several_exports_all_parts_are_of_one(tmp_path: Path) -> None:
    for left in ("-chunk-16-left-64", "-chunk-16-left-128", ".fp16"):
        tiny_sherpa.zipformer2(tmp_path, suffix=left)
    (tmp_path / "encoder-chunk-16-left-256.onnx").write_bytes(b"alone")
    assert {path.stem.partition("-")[2] for path in read_model(tmp_path, "x").files.values()} == {
        "chunk-16-left-128"
    }


@pytest.mark.parametrize(
    ("name", "languages"),
    [
        ("csukuangfj/sherpa-onnx-streaming-zipformer-en-kroko-2025-08-06@main", ("en",)),
        ("sherpa-onnx-streaming-zipformer-bilingual-zh-en-2023-02-20", ("zh", "en")),
        (
            "streaming-zipformer-ar_en_id_ja_ru_th_vi_zh-2025-02-10",
            tuple(["ar", "en", "id", "ja", "ru", "th", "vi", "zh"]),
        ),
        ("/models/sherpa-onnx-streaming-zipformer-korean-2024-06-16", ("ko",)),
        ("my-model", ()),
    ],
)
def test_languages_are_in_the_name(name: str, languages: tuple[str, ...]) -> None:
    assert languages_in(name) == languages


# --- what cannot be used ---


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-300])


def garbage(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(5000))


def web_page(path: Path) -> None:
    path.write_text("<!DOCTYPE html><html><body>404: not found</body></html>")


def pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 71100000\n")


@pytest.mark.parametrize("name", ["encoder.onnx", "decoder.onnx"])
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (cut, "not ONNX, or not all of it"),
        (garbage, "not ONNX, or not all of it"),
        (web_page, "not ONNX, or not all of it"),
        (pointer, "a Git LFS pointer"),
        (lambda path: path.write_bytes(b""), "empty"),
    ],
)
def test_what_is_no_onnx_is_told(
    folder: Path, name: str, spoil: Callable[[Path], None], reason: str
) -> None:
    spoil(folder / name)
    with pytest.raises(EngineError, match=rf"{name} cannot be used: it is {reason}"):
        read_model(folder, "x")


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("tokens.txt", r"there is no .*tokens\.txt"),
        ("joiner.onnx", r"x has no model for sherpa-onnx: .* needs encoder\*\.onnx"),
    ],
)
def test_a_missing_file_is_told(folder: Path, missing: str, reason: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(EngineError, match=reason):
        read_model(folder, "x")


@pytest.mark.parametrize(
    ("drop", "reason"),
    [
        ("model_type", r"the model_type '', not zipformer2, .*whole recordings"),
        ("decode_chunk_len", r"metadata lacks decode_chunk_len, which"),
        ("num_heads", r"metadata lacks num_heads"),
    ],
)
def test_missing_metadata_is_told(tmp_path: Path, drop: str, reason: str) -> None:
    folder = tiny_sherpa.zipformer2(tmp_path, drop=[drop])
    with pytest.raises(EngineError, match=reason):
        read_model(folder, "x")


@pytest.mark.parametrize(
    ("make", "tokens", "reason"),
    [
        (tiny_sherpa.zipformer2, "<blk> 0\na 1\n", "no label 2, and the model has 9"),
        (tiny_sherpa.zipformer2, "a b c\n", "not a list of labels"),
        (tiny_sherpa.zipformer2, "a b 1\n", "more than a label and its number"),
        (tiny_sherpa.zipformer2, "", "not a list of labels"),
        (
            tiny_sherpa.nemo,
            "<blk> 0\n" + "".join(f"a{i} {i}\n" for i in range(1, 9)),
            "last .*<blk>",
        ),
        (tiny_sherpa.zipformer2_ctc, "a 0\n", "no blank"),
    ],
)
def test_labels_of_another_model_are_told(
    tmp_path: Path, make: Callable[[Path], Path], tokens: str, reason: str
) -> None:
    folder = make(tmp_path)
    (folder / "tokens.txt").write_text(tokens)
    with pytest.raises(EngineError, match=reason):
        read_model(folder, "x")


def test_weights_in_a_file_beside_it_must_be_there(folder: Path) -> None:
    path = folder / "joiner.onnx"
    graph = part(5, constant("w", np.float32([1, 2]), data_file="joiner.data"))
    graph += part(1, node("Add", "x w", "y")) + part(11, value("x", FLOAT, "N", 2))
    path.write_bytes(number(1, 8) + part(7, graph + part(12, value("y", FLOAT, "N", 2))))
    assert read_header(path).data_files == {"joiner.data"}
    with pytest.raises(EngineError, match=r"weights are in joiner\.data, which is missing"):
        read_model(folder, "x")
    (folder / "joiner.data").write_bytes(bytes(8))
    read_model(folder, "x")


def test_a_header_is_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    onnx_writer.write(
        path,
        [node("Add", "a b", "c"), node("Elu", "c", "d", alpha=0.5)],
        [value("a", FLOAT, "N", 300), value("s", FLOAT)],
        [value("c", FLOAT, "N", 300), value("d", FLOAT, "N", 300)],
        {"b": np.ones(300, np.float32)},
        {"key": "Wörter", "empty": ""},
    )
    header = read_header(path)
    assert header.metadata == {"key": "Wörter", "empty": ""}
    assert header.inputs == {"a": (0, 300), "s": ()}
    assert header.outputs == ("c", "d")


def test_no_bytes_make_the_header_reader_fail_otherwise(folder: Path, tmp_path: Path) -> None:
    """Spoilt files of every kind are refused by ValueError, or read."""
    whole, chance, path = (folder / "joiner.onnx").read_bytes(), random.Random(7), tmp_path / "x"
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data[: chance.randrange(1, len(data) + 1)])
        with suppress(ValueError):
            read_header(path)


# --- from the hub ---


def test_8_bit_files_alone_are_downloaded_where_there_are_some(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for path in folder.glob("*.onnx"):
        found[path.name] = path.read_bytes()
        found[f"{path.stem}.int8.onnx"] = path.read_bytes()
    found |= {"tokens.txt": (folder / "tokens.txt").read_bytes(), "test_wavs/0.wav": b"RIFF"}
    model = downloaded(found, tmp_path, monkeypatch)
    assert {path.name for path in model.files.values()} == {
        "encoder.int8.onnx",
        "decoder.onnx",
        "joiner.int8.onnx",
    }
    names = {path.name for path in model.tokens.parent.iterdir()}
    assert names == {*(p.name for p in model.files.values()), "decoder.int8.onnx", "tokens.txt"}


def test_all_files_are_downloaded_where_there_are_no_8_bits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    model = downloaded(found, tmp_path, monkeypatch)
    assert {path.name for path in model.files.values()} == {
        "encoder.onnx",
        "decoder.onnx",
        "joiner.onnx",
    }


def downloaded(
    files: dict[str, bytes], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> model_files.SherpaModel:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache / "cache"))
    with running(Hub(files)) as hub:
        return find_model("org/model", hub=hub.url)
