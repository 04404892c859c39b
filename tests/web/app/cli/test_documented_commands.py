"""Every command that the documents, docstrings and messages name is one that the program takes."""

import ast
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES
from benchmarks.__main__ import main as bench
from offhook.web.app.cli.main import main as command_line
from offhook.web.app.cli.parser import parser

ROOT = Path(__file__).parents[4]
BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
MEASURED = re.compile(r"offhook bench ([a-z_]+)")
NAMED = re.compile(r"(?:^|[|&;=({\"' ]|\S/)offhook\s+(?!offhook\s)(?=[a-z-]+(?:\s|$))(.*)")
"""A command within a line, after a prompt, a variable or a path."""
IN_POD = re.compile(r"^kubectl (?:.* exec .* -- (?:sh -c\s+'(?=.*'$))?)?")
"""kubectl's own words, in which `offhook` names a namespace or a secret; what runs in the pod
follows."""


def documents() -> list[Path]:
    others = (ROOT / "deploy").rglob("*.md")
    top = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return [*top, *sorted((ROOT / "docs").glob("*.md")), *sorted(others)]


def commands(text: str) -> Iterator[str]:
    """What follows `offhook` wherever it stands as code, continued lines joined."""
    inline = (code.replace("\n", " ") for code in INLINE.findall(BLOCK.sub("", text)))
    blocks = (block.replace("\\\n", " ") for block in BLOCK.findall(text))
    for code in (*inline, *(line for block in blocks for line in block.splitlines())):
        if kubectl := IN_POD.match(code):
            code = code[kubectl.end() :].removesuffix("'") if " -- " in kubectl[0] else ""
        if not code.startswith((" ", "#", "from ", "import ")) and (found := NAMED.search(code)):
            yield found[1]


def texts(path: Path) -> Iterator[str]:
    """The docstrings and other strings of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def arguments(command: str) -> list[str]:
    """The command's words, without comments, redirections, and what a pipe leads to; of optional
    words in brackets, and of alternatives, the first."""
    words = shlex.split(command.replace("[", " ").replace("]", " "), comments=True)
    end = next((at for at, word in enumerate(words) if word in ("|", "&&", ">", "&", ";")), None)
    words = [word.removesuffix("…").partition("|")[0] for word in words[:end]]
    return ["bench", "--help"] if words[:2] == ["bench", "NAME"] else words


@cache
def named() -> list[tuple[str, str]]:
    said = [(path.name, one) for path in documents() for one in commands(path.read_text())]
    modules = [
        path
        for room in ("offhook", "benchmarks")
        for path in (ROOT / room).rglob("*.py")
        if "offhook " in path.read_text()
    ]
    return said + [
        (str(path.relative_to(ROOT)), one)
        for path in modules
        for text in texts(path)
        for one in commands(text.replace("``", "`"))
    ]


def test_documents_name_commands() -> None:
    assert len(named()) > 60  # else the patterns above find nothing
    assert ("README.md", "doctor") in named()


@pytest.mark.parametrize(("document", "command"), sorted(set(named())))
def test_a_documented_command_is_taken(
    document: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bare name of a command stands for the command; with arguments it is one to be typed."""
    given = arguments(command)
    if len(given) == 1:
        given.append("--help")
    try:
        parsed = parser().parse_args(given)
    except SystemExit as ended:
        if ended.code != 0:
            pytest.fail(capsys.readouterr().err)
    else:
        assert parsed.command != "bench" or parsed.name in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_says_how_it_is_used(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench([name, "--help"])
    assert ended.value.code == 0
    assert f"offhook bench {name}" in capsys.readouterr().out


def test_benchmarks_are_found_where_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the entry point of their package; without a name they are listed."""
    project = tomllib.loads((ROOT / "benchmarks/pyproject.toml").read_text())["project"]
    ((group, commands),) = project["entry-points"].items()
    installed = tmp_path / "offhook_bench-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: offhook-bench\n")
    (installed / "entry_points.txt").write_text(f"[{group}]\nbench = {commands['bench']}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for options in (["bench"], ["bench", "sip", "--help"]):
        with pytest.raises(SystemExit) as ended:
            command_line(options)
        assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(name in said for name in NAMES)
    assert "offhook bench sip" in said


def test_without_the_benchmarks_it_is_said_how_to_install_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert command_line(["bench", "turns"]) == 1
    assert "pip install ./benchmarks" in capsys.readouterr().err
