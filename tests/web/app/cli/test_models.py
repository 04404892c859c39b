"""`offhook models`: listed, downloaded, removed, against a hub on this machine."""

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

constants = pytest.importorskip("huggingface_hub.constants")

from offhook.pipeline.engines.hub import download_io  # noqa: E402
from offhook.pipeline.engines.pocket.spec import COMMIT as POCKET_COMMIT  # noqa: E402
from offhook.pipeline.engines.pocket.spec import REPOSITORY as POCKET  # noqa: E402
from offhook.pipeline.speech.engines import catalogue, packages  # noqa: E402
from offhook.pipeline.speech.errors import EngineError  # noqa: E402
from offhook.web.app.cli import main as cli  # noqa: E402
from offhook.web.app.cli.models_io import Models, near  # noqa: E402
from offhook.web.config.config import Config  # noqa: E402
from offhook.web.workers.engines import machine_io  # noqa: E402
from offhook.web.workers.engines.choice import Machine  # noqa: E402
from tests.support.hub_stand_in import Hub, running  # noqa: E402

NEMOTRON = "nvidia/nemotron-speech-streaming-en-0.6b"
TOKENIZER = os.urandom(3000)
VOICE = os.urandom(2000)


def language(weights: bytes, name: str) -> dict[str, bytes]:
    inside = f"languages/{name}"
    return {
        f"{inside}/model.safetensors": weights,
        f"{inside}/tokenizer.json": TOKENIZER,
        f"{inside}/embeddings/alba.safetensors": VOICE,
        f"{inside}/embeddings/cosette.safetensors": b"not for commercial use",
    }


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download_io, "FIRST_PAUSE_S", 0.01)
    nemotron = {"config.json": b"{}", "model.safetensors": os.urandom(50_000), "a.nemo": b"pickle"}
    pocket = {
        **language(os.urandom(20_000), "english"),
        **language(os.urandom(30_000), "german"),
    }
    with running(Hub(others={NEMOTRON: nemotron, POCKET: pocket})) as hub:
        monkeypatch.setenv("OFFHOOK_ENGINES_HUB", hub.url)
        yield hub


def listed(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    assert cli.main(["models", "list", "--json", *more]) == 0
    return {model["name"]: model for model in json.loads(capsys.readouterr().out)}


def on_disk(cache: Path) -> int:
    return sum(p.stat().st_size for p in cache.rglob("blobs/*") if p.is_file())


def test_a_model_is_pulled_listed_and_removed(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "offhook.toml").write_text(f'[asr]\nengine = "nemotron"\nmodel = "{NEMOTRON}"\n')
    before = listed(capsys)
    assert before.keys() == {model.name for model in catalogue()}
    assert not before[NEMOTRON]["complete"]
    assert before[NEMOTRON]["used_by"] == ["[asr] model"]
    assert before[NEMOTRON]["bytes"] == 2_472_413_604
    assert before[NEMOTRON]["licence"] == "NVIDIA Open Model License"
    # Its size is not in the catalogue: the hub tells it.
    assert before["english"]["bytes"] == 20_000 + len(TOKENIZER) + len(VOICE)
    assert before["french"]["bytes"] in (0, None)

    assert cli.main(["models", "pull", "nemotron"]) == 0
    folder = Path(capsys.readouterr().out.split(": ", 1)[1].strip())
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    after = listed(capsys)[NEMOTRON]
    assert after["complete"]
    assert after["bytes_here"] == 50_002
    assert cli.main(["models", "list"]) == 0
    assert "here  NVIDIA Open Model License  used: [asr] model" in capsys.readouterr().out

    assert cli.main(["models", "rm", "Nemotron-Speech-Streaming-EN-0.6b", "--yes"]) == 0
    assert not listed(capsys)[NEMOTRON]["bytes_here"]
    assert not on_disk(tmp_path / "cache")
    assert cli.main(["models", "rm", NEMOTRON, "--yes"]) == 1
    assert f"nothing of {NEMOTRON} is here" in capsys.readouterr().err


def test_one_language_of_a_repository_comes_and_goes(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["models", "pull", "english", "german"]) == 0
    places = capsys.readouterr().out.split()
    folder = Path(places[-1])
    assert folder.name == POCKET_COMMIT
    assert not list(folder.rglob("cosette*"))
    both = on_disk(tmp_path / "cache")
    assert cli.main(["models", "rm", "german", "--yes"]) == 0
    assert on_disk(tmp_path / "cache") == both - 30_000  # the tokenizer and the voice are shared
    state = listed(capsys)
    assert state["english"]["complete"]
    assert not state["german"]["complete"]
    assert cli.main(["models", "pull", "german"]) == 0
    assert listed(capsys)["german"]["complete"]


def test_what_others_keep_beside_it_stays(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`rm` takes what offhook uses; other files of the repository are another program's."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    commit = next(model.revision for model in catalogue() if model.name == NEMOTRON)
    there = Path(huggingface_hub.snapshot_download(NEMOTRON, revision=commit, endpoint=hub.url))
    assert listed(capsys)[NEMOTRON]["complete"]
    assert cli.main(["models", "rm", NEMOTRON, "--yes"]) == 0
    assert [path.name for path in there.iterdir()] == ["a.nemo"]


def test_progress_is_told_in_json(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "pull", "--json", NEMOTRON]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["state"] for line in told][-2:] == ["downloading", "here"]
    assert (told[-2]["bytes"], told[-2]["total"]) == (50_002, 50_002)
    assert Path(told[-1]["folder"]).is_dir()


def test_a_failure_is_told_in_json_and_by_the_status(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.damaged = {"model.safetensors"}
    assert cli.main(["models", "pull", "--json", NEMOTRON]) == 1
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told[-1]["state"] == "failed"
    assert told[-1]["model"] == NEMOTRON
    assert "came damaged, twice" in told[-1]["error"]
    assert cli.main(["models", "pull", "--json", "nemotorn"]) == 1
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "did you mean" in told[-1]["error"]


def test_part_of_a_model_is_listed_and_removed(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_io, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(download_io, "ATTEMPTS", 1)
    hub.cut["model.safetensors"] = 30_000
    assert cli.main(["models", "pull", NEMOTRON]) == 1
    assert "What has come is kept" in capsys.readouterr().err
    assert listed(capsys)[NEMOTRON]["bytes_here"] == 30_002
    assert cli.main(["models", "list"]) == 0
    assert "30 kB here" in capsys.readouterr().out
    assert cli.main(["models", "rm", NEMOTRON, "--yes"]) == 0
    assert not on_disk(tmp_path / "cache")


def test_removal_is_asked_for(
    hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["models", "pull", NEMOTRON]) == 0

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert cli.main(["models", "rm", NEMOTRON]) == 1
    assert "give --yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", Terminal("\n"))
    assert cli.main(["models", "rm", NEMOTRON]) == 0
    assert listed(capsys)[NEMOTRON]["complete"]
    monkeypatch.setattr("sys.stdin", Terminal("yes\n"))
    assert cli.main(["models", "rm", NEMOTRON]) == 0
    assert not listed(capsys)[NEMOTRON]["bytes_here"]


def test_the_list_needs_no_network(
    hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert listed(capsys)["english"]["bytes"] is None
    assert cli.main(["models", "list"]) == 0
    assert "unknown" in capsys.readouterr().out
    assert cli.main(["models", "pull", NEMOTRON]) == 1
    assert "HF_HUB_OFFLINE is set" in capsys.readouterr().err
    assert not hub.asked


def test_another_model_of_the_hub_is_pulled_by_its_id(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.others["org/mine"] = {"config.json": b"{}", "model.safetensors": b"weights"}
    assert cli.main(["models", "pull", "org/mine"]) == 0
    (tmp_path / "offhook.toml").write_text('[asr]\nengine = "nemotron"\nmodel = "org/mine"\n')
    mine = listed(capsys)["org/mine"]
    assert mine["complete"]
    assert mine["licence"] is None
    assert cli.main(["models", "pull", "nvidia/nemotron-speech-streeming-en-0.6b"]) == 1
    assert f"did you mean {NEMOTRON}" in capsys.readouterr().err


def test_what_auto_chooses_is_pulled(
    hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(8, 16 << 30, packages=packages())
    monkeypatch.setattr(machine_io, "look", lambda: machine)
    assert cli.main(["models", "pull", "auto"]) == 0
    assert NEMOTRON in capsys.readouterr().out
    assert listed(capsys)[NEMOTRON]["complete"]
    Path("offhook.toml").write_text('[asr]\nengine = "auto"\n')
    assert listed(capsys)[NEMOTRON]["used_by"] == ["[asr] engine"]
    monkeypatch.setattr(machine_io, "look", lambda: Machine(1, 1 << 30))
    assert cli.main(["models", "pull", "auto"]) == 1
    assert "auto has nothing to download here" in capsys.readouterr().err


# --- clumsy names ---


@given(st.text(max_size=40))
def test_any_name_is_a_model_or_is_refused_in_words(name: str) -> None:
    try:
        target = Models(Config()).target(name)
    except EngineError as error:
        said = str(error)
        assert "offhook models list" in said or "comes with its package" in said
    else:
        assert target.repository.count("/") == 1


@given(st.sampled_from([model.name for model in catalogue()]), st.data())
def test_a_mistyped_name_is_near_the_right_one(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(name) - 2))
    other = data.draw(st.sampled_from(["", "x", name[at + 1] + name[at]]))
    typed = name[:at] + other + name[at + (2 if len(other) == 2 else 1) :]
    meant = name.partition("_")[0].partition("-")[0]
    assert meant in near(typed) or Models(Config()).target(typed).name.startswith(meant)


def test_what_there_is_is_listed_without_the_packages_that_download(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert cli.main(["models", "list"]) == 0
    told = capsys.readouterr().out
    assert NEMOTRON in told
    assert "to download them: `make cpu`" in told
