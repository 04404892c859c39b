"""Documents are read by a process of its own, whatever they are."""

import sys
from pathlib import Path

import pytest

from benchmarks.calls.pdf_writer import bomb, pdf
from offhook.web.tools.knowledge import reader_io, reading_io
from offhook.web.tools.knowledge.reading_io import Reader, ReadFile, fault_of, listing

needs_pypdf = pytest.mark.skipif(not reader_io.reads_pdf(), reason="needs pypdf")


def read(folder: Path) -> dict[str, ReadFile]:
    found = listing((str(folder),))
    files = [(name, path) for name, (path, _) in found.files.items()]
    return {one.name: one for one in Reader().read(files)}


def test_files_of_all_kinds_are_read(tmp_path: Path) -> None:
    (tmp_path / "prices.md").write_text("# Prices\n\nA chain costs 35 euros.")
    (tmp_path / "notes.TXT").write_bytes("Räder.\r\n\r\nKörbe.".encode("utf-16"))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/page.html").write_text("<h1>Hours</h1><p>Nine to six.")
    files = read(tmp_path)
    assert files["prices.md"].passages == [("A chain costs 35 euros.", "Prices", "line 3")]
    assert files["notes.TXT"].passages == [("Räder.\n\nKörbe.", "", "line 1")]
    assert files["deep/page.html"].passages == [("Nine to six.", "Hours", "line 1")]
    assert not any(one.skipped or one.note for one in files.values())


@needs_pypdf
def test_a_pdf_is_read_page_by_page(tmp_path: Path) -> None:
    (tmp_path / "handbook.pdf").write_bytes(
        pdf(["The chain costs 35 euros.", "", "Brakes (both)\ncost 20 euros."])
    )
    one = read(tmp_path)["handbook.pdf"]
    assert one.passages == [
        ("The chain costs 35 euros.", "", "page 1"),
        ("Brakes (both) cost 20 euros.", "", "page 3"),
    ]
    assert one.note == "no text on page 2"


@needs_pypdf
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (pdf([""]), "has no text: scanned pages need text recognition first (ocrmypdf)"),
        (pdf(["secret"], encrypted=True), "is encrypted: save it without a password"),
        (b"no PDF at all", "cannot be read: "),
        (b"", "cannot be read: "),
        (pdf(["cut off"])[:200], "cannot be read: "),
    ],
)
def test_a_pdf_without_text_says_why(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "one.pdf").write_bytes(content)
    assert read(tmp_path)["one.pdf"].skipped.startswith(why)


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty.md").write_text("\n\n")
    (tmp_path / "latin.txt").write_bytes(b"R\xe4der")
    (tmp_path / "binary.txt").write_bytes(b"\0\1\2")
    (tmp_path / "large.txt").write_bytes(b"x" * (reader_io.MAX_TEXT_BYTES + 1))
    assert {name: one.skipped for name, one in read(tmp_path).items()} == {
        "empty.md": "is empty",
        "latin.txt": "is not UTF-8: save it as UTF-8",
        "binary.txt": "is no text",
        "large.txt": "has over 5 MB",
    }


def test_other_files_are_listed_as_skipped_and_hidden_ones_not(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("x")
    (tmp_path / "photo.png").write_bytes(b"x")
    (tmp_path / ".draft.md").write_text("x")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/b.md").write_text("x")
    (tmp_path / "gone.md").symlink_to(tmp_path / "nowhere.md")
    found = listing((str(tmp_path),))
    assert list(found.files) == ["a.md"]
    assert found.skipped["photo.png"].startswith("is none of .md, ")
    assert found.skipped["gone.md"] == "cannot be read: No such file or directory"
    assert len(found.skipped) == 2


def test_several_folders_have_names_of_their_own(tmp_path: Path) -> None:
    roots = [str(tmp_path / name) for name in ("a", "b")]
    for root in roots:
        Path(root).mkdir()
        Path(root, "x.md").write_text("x")
    assert set(listing(roots).files) == {f"{root}/x.md" for root in roots}


def test_missing_and_empty_folders_are_faults(tmp_path: Path) -> None:
    assert fault_of((str(tmp_path / "no"),)).endswith("no: No such file or directory")
    assert "has no documents: put in some that end in .md" in fault_of((str(tmp_path),))
    (tmp_path / "a.md").write_text("x")
    assert fault_of((str(tmp_path),)) == ""


def test_a_pdf_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_io, "reads_pdf", lambda: False)
    (tmp_path / "a.md").write_text("x")
    (tmp_path / "b.pdf").write_bytes(pdf(["x"]))
    words = "b.pdf: a PDF needs the pypdf package: run .venv/bin/pip install pypdf"
    assert fault_of((str(tmp_path),)) == words


@needs_pypdf
def test_a_bomb_is_skipped_and_the_next_file_read(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(bomb(200))
    (tmp_path / "b.md").write_text("Fine.")
    files = read(tmp_path)
    assert files["a.pdf"].skipped.startswith("no page can be read: LimitReachedError")
    assert files["b.md"].passages


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crashes what reads it (SIGSEGV)"),
        ("os.kill(os.getpid(), signal.SIGXCPU)", "takes more than 120 s of a processor's time"),
        ("time.sleep(60)", "takes more than 0.5 s to read, or memory that is not there"),
        ("sys.exit(3)", "ends what reads it (status 3)"),
        ("print('{}')", "ends what reads it (status 0)"),
        ("print('no JSON')", "ends what reads it (status 0)"),
    ],
)
def test_a_file_at_which_the_process_ends_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, why: str
) -> None:
    code = f"import os, signal, sys, time; sys.stdin.readline(); {does}; sys.stdout.flush()"
    monkeypatch.setattr(reading_io, "COMMAND", (sys.executable, "-c", code))
    monkeypatch.setattr(reading_io, "READING_S", 0.5 if "sleep" in does else 60)
    files = [(name, tmp_path / name) for name in ("a.md", "b.md")]
    assert [one.skipped for one in Reader().read(files)] == [why, why]


@pytest.mark.parametrize(
    ("reads", "why"),
    [
        ("sum(iter(int, 1))", "takes more than 120 s of a processor's time"),
        ("bytes(1 << 40)", "takes more than 512 MB of memory"),
    ],
)
def test_the_process_limits_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: str, why: str
) -> None:
    changed = f"r.COMPUTING_S = 1; r.KINDS['.md'] = lambda text: {reads}"
    code = f"from offhook.web.tools.knowledge import reader_io as r; {changed}; r.main()"
    monkeypatch.setattr(reading_io, "COMMAND", (sys.executable, "-c", code))
    (tmp_path / "a.md").write_text("x")
    assert read(tmp_path)["a.md"].skipped == why
