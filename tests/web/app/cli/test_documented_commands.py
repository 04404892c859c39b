"""Every command that the documents, docstrings and messages name is one that the program takes."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES
from offhook.web.app.cli.parser import BENCHMARKS, parser

ROOT = Path(__file__).parents[4]
BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
MEASURED = re.compile(r"python -m benchmarks ([a-z_]+)")
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
    return ["bench", BENCHMARKS[0]] if words == ["bench", "NAME"] else words


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
        parser().parse_args(given)
    except SystemExit as ended:
        if ended.code != 0:
            pytest.fail(capsys.readouterr().err)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_says_how_it_is_used(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        import_module(f"offhook.bench.{name}").main(["--help"])
    assert ended.value.code == 0
    assert f"offhook bench {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
def test_a_developers_benchmark_says_how_it_is_used(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        import_module(f"benchmarks.{NAMES[name]}").main(["--help"])
    assert ended.value.code == 0
    assert f"python -m benchmarks {name}" in capsys.readouterr().out


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_documents_name_benchmarks_of_developers(path: Path) -> None:
    assert set(MEASURED.findall(path.read_text())) <= NAMES.keys()
