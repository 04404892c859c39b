"""Models from a hub, against a stand-in for it: what comes, what goes wrong, and what is said."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub", minversion="1.0")  # older ones resume at the next start only
constants = pytest.importorskip("huggingface_hub.constants")

from offhook.pipeline.models import hub_io  # noqa: E402
from offhook.pipeline.models.hub_io import MODELSCOPE, PINNED, find  # noqa: E402
from offhook.pipeline.speech.recognizer import EngineError  # noqa: E402
from offhook.web.engines.engines_io import MODELS  # noqa: E402
from tests.pipeline.models.hub_stand_in import COMMIT, Hub, running  # noqa: E402

WEIGHTS = os.urandom(300_000)
FILES = {
    "config.json": b'{"model_type": "qwen3_asr"}',
    "model.safetensors": WEIGHTS,
    "speech_tokenizer/config.json": b"{}",
    "merges.txt": b"a b",
    "model.nemo": b"pickles" * 1000,
    "README.md": b"words",
}
LICENCE = "asks for its licence to be accepted: do so at http.*/org/model, and set HF_TOKEN"
NEEDED = {name for name in FILES if not name.endswith((".nemo", ".md"))}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "modelscope"))
    with running(Hub(dict(FILES))) as hub:
        monkeypatch.setattr(hub_io, "MODELSCOPE_URL", hub.url)
        yield hub


@pytest.fixture(params=["hugging face", MODELSCOPE])
def source(request: pytest.FixtureRequest, hub: Hub) -> str:
    """What `find` is told."""
    return MODELSCOPE if request.param == MODELSCOPE else hub.url


def come(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (hub_io.LISTING, hub_io.LOCK)
    }


def refusal(model: str, source: str) -> str:
    with pytest.raises(EngineError) as error:
        find(model, hub=source)
    return str(error.value)


def files_asked(hub: Hub) -> int:
    return sum(name in path for path, _ in hub.asked for name in ("resolve", "/repo"))


# --- what comes ---


def test_what_is_needed_comes_once(hub: Hub, source: str) -> None:
    told: list[tuple[int, int]] = []
    folder = find("org/model", lambda done, total: told.append((done, total)), source)
    assert come(folder) == {name: FILES[name] for name in NEEDED}
    size = sum(len(FILES[name]) for name in NEEDED)
    assert told[-1] == (size, size)
    hub.asked.clear()
    assert find("org/model", hub=source) == folder
    assert not any("resolve" in path or path.endswith("/repo") for path, _ in hub.asked)


def test_a_caller_names_the_files_it_wants(hub: Hub, source: str) -> None:
    hub.files |= {"languages/english/model.safetensors": b"en", "languages/german/a.onnx": b"de"}
    folder = find("org/model", hub=source, files=("languages/english/*",))
    assert come(folder) == {"languages/english/model.safetensors": b"en"}
    find("org/model", hub=source, files=("*.onnx", "merges.txt"))
    assert come(folder).keys() == {
        "languages/english/model.safetensors",
        "languages/german/a.onnx",
        "merges.txt",
    }


def test_a_download_that_broke_off_goes_on_where_it_was(hub: Hub, source: str) -> None:
    hub.cut["model.safetensors"] = 100_000
    assert come(find("org/model", hub=source))["model.safetensors"] == WEIGHTS
    assert [wanted for _, wanted in hub.asked if wanted] == ["bytes=100000-"]


def test_a_revision_is_a_branch_or_a_commit(hub: Hub, source: str) -> None:
    branch = "master" if source == MODELSCOPE else "main"
    for revision in (branch, COMMIT):
        assert come(find(f"org/model@{revision}", hub=source)).keys() == NEEDED
    assert "revision v9" in refusal("org/model@v9", source)


def test_models_come_in_the_commit_they_were_tested_with(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model in MODELS.values():
        assert "/" not in model or len(PINNED[model]) == 40
    monkeypatch.setitem(PINNED, "org/model", COMMIT)
    find("org/model", hub=hub.url)
    assert not any(path.endswith("/main") for path, _ in hub.asked)
    assert "has no revision v9" in refusal("org/model@v9", hub.url)


# --- what goes wrong ---


def test_a_damaged_file_is_removed_and_comes_anew(hub: Hub, source: str) -> None:
    hub.damaged = {"model.safetensors"}
    said = refusal("org/model", source)
    assert "model.safetensors of org/model came damaged" in said
    assert "start again" in said
    hub.damaged = set()
    assert come(find("org/model", hub=source))["model.safetensors"] == WEIGHTS


def test_a_small_file_is_looked_at_too(hub: Hub, source: str) -> None:
    hub.damaged = {"config.json"}
    assert "config.json of org/model came damaged" in refusal("org/model", source)


@pytest.mark.parametrize(
    ("status", "code", "files", "says"),
    [
        (401, "GatedRepo", False, LICENCE),
        (403, "GatedRepo", False, LICENCE),
        (403, "GatedRepo", True, LICENCE),
        (401, "RepoNotFound", False, "no model org/model.* a private one needs HF_TOKEN"),
        (403, "", False, "refuses org/model: .*/org/model .* HF_TOKEN to a valid"),
        (403, "", True, "refuses org/model: .*/org/model .* HF_TOKEN to a valid"),
        (500, "", False, "org/model is not on this machine.* hub cannot be reached"),
    ],
)
def test_what_the_hub_refuses_is_said(
    hub: Hub, status: int, code: str, files: bool, says: str
) -> None:
    hub.refuses, hub.refuses_files = (status, code), files
    with pytest.raises(EngineError, match=says):
        find("org/model", hub=hub.url)


@pytest.mark.parametrize(
    ("status", "says"),
    [(403, "does not give org/model to everybody"), (500, "has failed")],
)
def test_what_modelscope_refuses_is_said(hub: Hub, status: int, says: str) -> None:
    hub.refuses = (status, "")
    with pytest.raises(EngineError, match=says):
        find("org/model", hub=MODELSCOPE)


def test_a_model_that_is_not_there_is_named(source: str) -> None:
    assert "has no model org/other" in refusal("org/other", source)
    assert "has no model Org/other" in refusal("Org/other", source)


def test_without_the_hub_what_is_here_will_do(
    hub: Hub, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    folder = find("org/model", hub=source)
    monkeypatch.setattr(hub_io, "MODELSCOPE_URL", nowhere)
    source = MODELSCOPE if source == MODELSCOPE else nowhere
    assert find("org/model", hub=source) == folder
    said = refusal("org/other", source)
    assert "org/other is not on this machine" in said
    assert "download it elsewhere and name its folder" in said


def test_without_the_hub_half_a_model_will_not_do(
    hub: Hub, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.damaged = {"model.safetensors"}
    refusal("org/model", source)
    hub.refuses = (500, "")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(hub_io, "MODELSCOPE_URL", nowhere)
    source = MODELSCOPE if source == MODELSCOPE else nowhere
    assert "org/model is not on this machine, or not all of it" in refusal("org/model", source)


def test_offline_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said = refusal("Qwen/Qwen3-ASR-0.6B", hub.url)
    assert "Qwen/Qwen3-ASR-0.6B is not on this machine" in said
    assert "HF_HUB_OFFLINE" in said


def test_a_mirror_writes_nothing_elsewhere(hub: Hub, tmp_path: Path) -> None:
    hub.files["../../escaped.json"] = b"{}"
    assert "outside of org/model" in refusal("org/model", MODELSCOPE)
    assert not list(tmp_path.rglob("escaped.json"))


def test_a_folder_is_found_as_it_is(tmp_path: Path) -> None:
    assert find(str(tmp_path)) == tmp_path
    with pytest.raises(EngineError, match="no folder"):
        find(str(tmp_path / "nowhere"))
    at = tmp_path / "model@home"
    at.mkdir()
    assert find(str(at)) == at


def test_what_modelscope_lists_badly_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "modelscope_listing", lambda self: json.loads('{"Code": 200}'))
    assert "no list of files" in refusal("org/model", MODELSCOPE)
