"""What is known of a kind of agent stands beside it: no other code has its name."""

import ast
from pathlib import Path

import pytest

from offhook.pipeline.conversation.agents.kinds import kinds
from offhook.pipeline.speech.engine_spec import imported
from tests.test_engine_names import PACKAGE, texts_of_documents

FOLDER = "pipeline/conversation/agents"
ENGINE = "an engine of that name"
SILENCE = "a state or a sound without speech"
SESSION = "the type of a session of OpenAI's Realtime API"
EXCEPTIONS = {
    "pipeline/engines/pocket/engine.py": SILENCE,
    "pipeline/engines/qwen3_tts/streams.py": SILENCE,
    "pipeline/speech/openai/client_io.py": ENGINE,
    "pipeline/speech/openai/spec.py": ENGINE,
    "testing/tools_io.py": "an agent that may have tools",
    "web/app/evals/scenarios_io.py": "a service of Pipecat's harness",
    "web/config/engines.py": ENGINE,
    "web/edge/realtime_io.py": SESSION,
    "web/edge/reload_io.py": "a section of the configuration",
    "web/workers/engines/auto_state.py": SILENCE,
    "web/http/access.py": "what a holder of a key may use",
    "web/realtime/call_control_io.py": SESSION,
    "web/realtime/leg_io.py": "the edge that a call arrived by",
    "web/realtime/protocol/client_events.py": "a dialect of the Realtime API",
    "web/realtime/protocol/conversation_session.py": SESSION,
    "web/realtime/sessions.py": SESSION,
    "web/realtime/transcription/server_io.py": SESSION,
}
"""Other files with such a name, and why."""


def names_in(path: Path) -> list[str]:
    """Texts of the code that are a kind's name, without docstrings."""
    tree = ast.parse(path.read_text())
    documents = texts_of_documents(tree)
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in documents
        and node.value in kinds.OURS
    ]


def test_no_kind_is_named_outside_its_folder() -> None:
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        found = [] if name.startswith(FOLDER) else names_in(path)
        assert name in EXCEPTIONS or not found, f"{name}: {found}"


@pytest.mark.parametrize("path", EXCEPTIONS)
def test_every_exception_is_one(path: str) -> None:
    assert names_in(PACKAGE / path)


def test_what_kinds_refer_to_is_there() -> None:
    for kind in kinds.OURS.values():
        for path in (kind.makes, kind.examines, kind.asks):
            assert not path or callable(imported(path)), path
