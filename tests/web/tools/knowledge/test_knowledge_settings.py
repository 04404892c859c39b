"""What the configuration says of agents' documents, and what stands in requests."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from offhook.pipeline.conversation.passages import Passage, last_words, with_passages
from offhook.web.app.doctor.knowledge_io import examine_knowledge
from offhook.web.config.agents import Agent
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.knowledge import Knowledge
from offhook.web.edge.edge_io import check_knowledge

CHAIN = "A new chain costs 35 euros."


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"knowledge": "x"}, 'knowledge: only for kind = "openai" or "realtime"'),
        ({"kind": "silent", "knowledge": "x"}, 'knowledge: only for kind = "openai" or "realtime"'),
        ({"kind": "openai", "knowledge_in_prompt": True}, "knowledge_in_prompt needs knowledge"),
        (
            {"kind": "realtime", "model": "m", "knowledge": "x", "knowledge_in_prompt": True},
            'knowledge_in_prompt: only for kind = "openai"',
        ),
        (
            {
                "kind": "openai",
                "knowledge": "x",
                "tools": [{"name": "search_knowledge", "function": "a:b"}],
            },
            "two are called search_knowledge",
        ),
    ],
)
def test_what_cannot_be_is_refused(table: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Agent.model_validate(table)
    assert fault in str(raised.value)


def test_a_url_needs_a_model() -> None:
    with pytest.raises(ValidationError, match="belong together"):
        Knowledge(embeddings_url="http://localhost/v1")


def test_a_server_without_the_documents_does_not_start(tmp_path: Path) -> None:
    one = Agent(kind="openai", knowledge=(str(tmp_path),))
    with pytest.raises(ConfigError, match=r"agents\.desk\.knowledge: .* has no documents"):
        check_knowledge(Config(agents={"desk": one}))


def test_doctor_says_what_is_read_and_what_is_not(tmp_path: Path) -> None:
    papers = tmp_path / "papers"
    papers.mkdir()
    (papers / "prices.md").write_text(CHAIN)
    (papers / "photo.png").write_bytes(b"x")
    agents = {
        "desk": Agent(kind="openai", knowledge=(str(papers),)),
        "lost": Agent(kind="openai", knowledge=(str(tmp_path / "no"),)),
        "none": Agent(),
    }
    settings = Knowledge(embeddings_url="http://127.0.0.1:1/v1", embeddings_model="m")
    found = list(examine_knowledge(Config(agents=agents, knowledge=settings)))
    assert [(one.subject, one.verdict) for one in found] == [
        ("knowledge of agents.desk", "ok"),
        ("knowledge of agents.desk", "note"),
        ("knowledge of agents.lost", "fails"),
        ("embeddings of m", "fails"),
    ]
    assert found[0].detail == "documents: 1, passages: 1"
    assert found[1].detail.startswith("photo.png: skipped: is none of .md")


def test_passages_stand_before_the_last_words_of_the_caller() -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "And a chain?"},
        {"role": "assistant", "tool_calls": []},
        {"role": "tool", "content": "{}"},
    ]
    assert last_words(messages) == "And a chain?"
    asked = with_passages(messages, [Passage("a.md, line 1", "", CHAIN)])
    assert [one["role"] for one in asked] == [one["role"] for one in messages]
    assert asked[1]["content"].endswith("And a chain?")
    assert CHAIN in asked[1]["content"]
    assert messages[1]["content"] == "And a chain?"
    assert with_passages(messages, []) == messages
    assert with_passages(messages[:1], [Passage("a", "", "b")]) == messages[:1]
