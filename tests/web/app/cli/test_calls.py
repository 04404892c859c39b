"""`offhook calls`: list, show, export and forget calls, without a server."""

import csv
import io
import json
from pathlib import Path

import pytest

from offhook.web.app.cli.main import main
from offhook.web.records.store import CallStore
from tests.web.records.made_calls import HERE, NOON, begun, call_of, over, said


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "offhook.toml"
    path.write_text(f'[records]\nurl = "sqlite:///{tmp_path}/calls.db"\n')
    store = CallStore(f"sqlite:///{tmp_path}/calls.db")
    store.prepare()
    store.write(call_of("lost", "my card is lost"), HERE, NOON)
    escape = "=cmd()\x1b[2J"
    store.write(
        [begun("evil", NOON + 60, caller=escape), said("evil", 0, "caller", escape)], HERE, NOON
    )
    store.write([over("evil", NOON + 70)], HERE, NOON)
    store.close()
    return str(path)


@pytest.fixture(autouse=True)
def by_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OFFHOOK_RECORDS_URL")


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["calls", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_calls_are_listed_and_shown(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ran(capsys, "list", "--config", config)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["CALL", "evil", "lost"]
    assert "\x1b" not in out
    code, out, _ = ran(capsys, "list", "--text", "card", "--json", "--config", config)
    assert [call["call_id"] for call in json.loads(out)["calls"]] == ["lost"]
    code, out, _ = ran(capsys, "show", "lost", "--config", config)
    assert "caller: my card is lost" in out
    assert "answered after 400 ms: asr_final 90" in out
    code, out, _ = ran(capsys, "show", "evil", "--config", config)
    assert "\x1b" not in out
    code, out, _ = ran(capsys, "show", "lost", "--json", "--config", config)
    assert json.loads(out)["timeline"][0]["text"] == "my card is lost"


def test_calls_are_exported(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = ran(capsys, "export", "--config", config)
    assert [json.loads(line)["call_id"] for line in out.splitlines()] == ["evil", "lost"]
    _, out, _ = ran(capsys, "export", "--csv", "--config", config)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["call_id"] for row in rows] == ["evil", "lost"]
    assert rows[0]["caller"].startswith("'=")  # no formula of a spreadsheet


def test_a_number_is_forgotten_once_it_is_said_so(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert ran(capsys, "forget", "+49301234567", "--config", config)[0] == 1
    code, out, _ = ran(capsys, "forget", "+49301234567", "--yes", "--config", config)
    assert (code, out) == (0, "forgotten: 1 calls, 0 recordings\n")
    assert "deleted" in ran(capsys, "show", "lost", "--config", config)[1]
    assert ran(capsys, "forget", "+49301234567", "--yes", "--config", config)[0] == 1


def test_a_call_without_an_analysis_is_not_analysed(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = ran(capsys, "analyze", "lost", "--config", config)
    assert (code, out.startswith("lost: not analysed: none of its agents")) == (1, True)
    code, out, _ = ran(capsys, "analyze", "--text", "card", "--json", "--config", config)
    assert (code, json.loads(out)["analysis"]) == (1, None)
    code, _, err = ran(capsys, "analyze", "--config", config)
    assert (code, err.startswith("which calls?")) == (1, True)
    code, _, err = ran(capsys, "analyze", "nobody", "--config", config)
    assert (code, "there is no call nobody" in err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("show", "nobody"), "there is no call nobody"),
        (("play", "lost"), "not recorded"),
        (("list", "--from", "tuesday"), "from: a date or time"),
        (("list", "--limit", "x"), "limit"),
    ],
)
def test_what_does_not_work_is_said(
    config: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    code, _, err = ran(capsys, *arguments, "--config", config)
    assert code == 1
    assert words in err


def test_a_folder_without_calls_is_said_and_stays_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = ran(capsys, "list")
    assert code == 1
    assert "there is no calls.db here" in err
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_keeps_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.toml"
    path.write_text('[records]\nurl = ""\n')
    code, _, err = ran(capsys, "list", "--config", str(path))
    assert code == 1
    assert "[records] url is empty" in err
