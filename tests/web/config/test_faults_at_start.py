"""What only a start finds of the agents in a file: it names the line, and what would help."""

import re
from pathlib import Path

import pytest

from offhook.web.config.config import Config, ConfigError, load
from offhook.web.edge.edge_io import check_knowledge
from offhook.web.tools.agent_tools_io import AgentTools
from offhook.web.workers.engines.abilities_io import check_engines

AGENT = """[tts]
engine = "flite"
[agents.my-desk]
kind = "openai"
model = "m"
"""
TOOL = """[[agents.my-desk.tools]]
name = "look"
description = "Looks it up."
url = "http://shop.example/"
"""
FUNCTION = """[[agents.my-desk.tools]]
name = "look"
"""


def start(config: Config) -> None:
    """Looks at what agents need, as a start does."""
    check_engines(config)
    check_knowledge(config)
    AgentTools().load(config)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('voice = "nobody"', 6, "my-desk.voice: flite has no voice 'nobody', only slt, rms, awb"),
        ('language = "de"', 6, "my-desk.language: .* set \\[asr\\] engine"),
        ('languages = ["en", "de"]', 6, "my-desk.languages: .* set \\[asr\\] engine"),
        ('knowledge = "none"', 6, "my-desk.knowledge: none: No such file"),
        ('knowledge = "empty"', 6, "my-desk.knowledge: empty: has no documents: put in some"),
        (f'{TOOL}sound = "none.wav"', 10, "sound of a tool: none.wav: no such file"),
        (f'{FUNCTION}function = "no_shop:look"', 6, "the tool look: no_shop:look cannot be used"),
    ],
)
def test_each_has_its_line_and_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("offhook.toml").write_text(f"{AGENT}{text}\n")
    config = load(Path("offhook.toml"), {})
    with pytest.raises(ConfigError) as fault:
        start(config)
    assert re.match(rf"offhook\.toml:{line}: (agents\.)?{words}", str(fault.value))
