"""`[agents.X.analysis]`: what may stand there, and whose model it is."""

from pathlib import Path
from typing import Any

import pytest

from offhook.web.config.config import ConfigError, load
from offhook.web.config.language_models.analysis import Analysis

AGENT = """
[agents.desk]
kind = "openai"
model = "m"
base_url = "http://127.0.0.1:1/v1"
api_key = "secret"
max_tokens = 40
temperature = 0.5
headers = {api-version = "1"}

[agents.desk.analysis]
"""


def analysis(folder: Path, text: str, agent: str = AGENT) -> tuple[Analysis, Any]:
    path = folder / "offhook.toml"
    path.write_text(agent + text)
    desk = load(path, {}).agents["desk"]
    assert desk.analysis is not None
    return desk.analysis, desk.analysis.model_beside(desk)


def test_one_criterion_needs_no_name(tmp_path: Path) -> None:
    found, model = analysis(tmp_path, 'success = "The caller has an appointment."')
    assert found.success == {"success": "The caller has an appointment."}
    assert (model.model, model.base_url, model.api_key) == ("m", "http://127.0.0.1:1/v1", "secret")
    assert (model.max_tokens, model.temperature) == (4000, 0.5)
    assert model.headers == {"api-version": "1"}


def test_another_model_of_the_same_server_has_its_key(tmp_path: Path) -> None:
    _, model = analysis(tmp_path, 'model = "larger"\ntemperature = 0\nmax_tokens = 900')
    assert (model.model, model.api_key) == ("larger", "secret")
    assert (model.max_tokens, model.temperature) == (900, 0.0)


def test_another_server_has_no_secrets_of_the_first(tmp_path: Path) -> None:
    _, model = analysis(tmp_path, 'model = "judge"\nbase_url = "https://judge.example/v1"')
    assert (model.model, model.base_url) == ("judge", "https://judge.example/v1")
    assert (model.api_key, dict(model.headers), dict(model.query)) == ("", {}, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("summary = false", "asks for nothing"),
        ('success = ""', "success"),
        ('success = {"a name" = "x"}', "success"),
        ('success = "{{caller}} is content."', "has no variables"),
        ('base_url = "https://judge.example/v1"', "a base_url needs model"),
        ('model = "m"\nbase_url = "judge.example"', "is no URL"),
        ('model = "m"\nbase_url = "wss://judge.example/v1"', "needs a base_url that begins with"),
        ("[agents.desk.analysis.extract.day]\nrequired = true", "nobody is asked after the call"),
        ('[agents.desk.analysis.extract.day]\ntype = "choice"', "belong together"),
        ('[agents.desk.analysis.extract.day]\nask = "{{caller}}"', "has no variables"),
        ("sucess = 1", "did you mean success"),
        ('[records]\nurl = ""', r"needs \[records\] url and words"),
        ("[records]\nwords = false", r"needs \[records\] url and words"),
    ],
)
def test_what_makes_no_sense_is_told_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        analysis(tmp_path, text)


def test_an_agent_without_a_chat_model_needs_one(tmp_path: Path) -> None:
    desk = "[agents.desk]\n[agents.desk.analysis]\n"
    with pytest.raises(ConfigError, match="analysis: needs model"):
        analysis(tmp_path, "summary = true", desk)
    _, model = analysis(tmp_path, 'model = "gpt-4o-mini"\napi_key = "k"', desk)
    assert (model.base_url, model.api_key) == ("https://api.openai.com/v1", "k")
