"""What is known of an engine stands in its own folder: no other code has its name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from offhook.pipeline.speech.engine_spec import imported
from offhook.pipeline.speech.engines import OURS, all_specs

PACKAGE = Path(__file__).parent.parent / "offhook"
NAME = re.compile(
    r"(?i:qwen|nemotron|sherpa|pocket|flite|kokoro|piper)|(?<![A-Za-z])e_?speak|(?<![a-z])Espeak"
)
FOLDERS = (
    *{path.partition(":")[0].rpartition(".")[0] for paths in OURS.values() for path in paths},
    "offhook.pipeline.engines.nemotron.model",
    "offhook.pipeline.engines.pocket.model",
    "offhook.pipeline.engines.shared.qwen3",
    "offhook.pipeline.engines.qwen3_asr.model",
    "offhook.pipeline.engines.qwen3_tts.model",
)
LAYERS = "layers of one family of models, in qwen3, serve other engines too"
EXCEPTIONS = {
    "pipeline/speech/engines.py": "the table of specs",
    "pipeline/engines/shared/capacity.py": LAYERS,
    "pipeline/engines/shared/model/int8.py": LAYERS,
    "pipeline/engines/shared/model/packed.py": LAYERS,
    "web/app/cli/align_io.py": "the command loads an aligner itself, of which there is one",
    "web/app/cli/voice_io.py": "the command loads a model's encoders itself, of which there is one",
}
"""Other files with a name, and why."""


def texts_of_documents(tree: ast.Module) -> set[int]:
    """The docstrings, of modules, functions and fields."""
    parts = ("body", "orelse")
    bodies = [getattr(node, part, ()) for node in ast.walk(tree) for part in parts]
    lines = [line for body in bodies if isinstance(body, list) for line in body]
    return {id(line.value) for line in lines if isinstance(line, ast.Expr)}


def words_of(path: Path) -> Iterator[str]:
    """Identifiers, modules and texts of the code, without docstrings and comments."""
    if path.suffix != ".py":
        yield re.sub(r"//.*|/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        return
    tree = ast.parse(path.read_text())
    documents = texts_of_documents(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in documents:
                yield text
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.alias(name=name):
                yield name
            case ast.ImportFrom(module=str(module)):
                yield module


def names_in(path: Path) -> list[str]:
    return [word for word in words_of(path) if NAME.search(word)]


def is_in_a_folder(path: Path) -> bool:
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return module.startswith(tuple(f"{folder}." for folder in FOLDERS))


def test_no_engine_is_named_outside_its_folder() -> None:
    code = [*PACKAGE.rglob("*.py"), *(PACKAGE / "web/edge/page/static").glob("*.js")]
    for path in code:
        if not is_in_a_folder(path):
            found = names_in(path)
            excepted = str(path.relative_to(PACKAGE)) in EXCEPTIONS
            assert excepted or not found, f"{path.relative_to(PACKAGE)}: {found}"


@pytest.mark.parametrize("path", EXCEPTIONS)
def test_every_exception_is_one(path: str) -> None:
    assert names_in(PACKAGE / path)


def test_every_engine_has_a_name_that_is_looked_for() -> None:
    ours = {spec.name for spec in all_specs()} - {"openai", "embedded"}
    assert not {name for name in ours if not NAME.search(name)}


def test_what_specs_refer_to_is_there() -> None:
    pytest.importorskip("torch")
    for spec in all_specs():
        size = spec.on_gpu.size if spec.on_gpu else ""
        for path in (spec.opens, spec.abilities_of, spec.checks, spec.means, size):
            assert not path or callable(imported(path)), path
