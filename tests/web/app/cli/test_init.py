"""`offhook init` and `offhook chat`, as somebody new uses them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from offhook.web.app.cli.init_io import Answers, completed, models_of, text_of, write
from offhook.web.config.config import ConfigError, load
from tests.support.environment import environment
from tests.support.waiting import HANGS_S
from tests.web.tools.test_http_tool import shop

OURS = (sys.executable, "-m", "offhook")


def run(folder: Path, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OURS, *arguments],
        cwd=folder,
        input=typed,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )


def test_an_empty_folder_becomes_a_conversation(tmp_path: Path) -> None:
    made = run(tmp_path, "init", "--yes", "--model-url", "", "--greeting", 'Ada\'s "Café", hello!')
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("wrote offhook.toml\n")
    assert len((tmp_path / "offhook.toml").read_text().splitlines()) <= 30
    talked = run(tmp_path, "chat", "--json", typed="What are your opening hours?\nBye.\nHello?\n")
    assert talked.returncode == 0, talked.stderr
    greeting, hours, goodbye = map(json.loads, talked.stdout.splitlines())
    assert greeting["words"] == ['Ada\'s "Café", hello!']
    assert hours["said"] == "What are your opening hours?"
    assert "Monday to Friday" in hours["words"][0]
    assert goodbye["ended"]


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "offhook.toml").write_text("# mine\n")
    refused = run(tmp_path, "init", "--yes")
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert (tmp_path / "offhook.toml").read_text() == "# mine\n"


def test_an_agent_that_is_not_there_is_said(tmp_path: Path) -> None:
    talked = run(tmp_path, "chat", "nobody", "--say", "Hello")
    assert talked.returncode == 1
    assert talked.stderr == "offhook: no agent is called 'nobody' (there: none)\n"


async def test_five_questions_make_a_configuration(tmp_path: Path) -> None:
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "first"}, {"id": "second"}]})

    asked: list[tuple[str, str]] = []
    async with shop(models) as url:
        answers = iter([f"{url}/v1", "second", 'Say "hi".\nOnce.', "You sell ÄÖÜ \\ bikes.", "de"])

        def ask(question: str, usual: str) -> str:
            asked.append((question, usual))
            return next(answers)

        a = await completed(Answers(), ask)
    assert len(asked) == 5
    assert "first, second" in asked[1][0]
    assert asked[1][1] == "first"
    lacking = write(tmp_path / "desk.toml", a, force=False)
    config = load(tmp_path / "desk.toml", {})
    assert config.agent.model == "second"
    assert config.agent.greeting == 'Say "hi".\nOnce.'
    assert config.agent.instructions == "You sell ÄÖÜ \\ bikes."
    assert (config.asr.language, config.tts.language) == ("de", "de")
    assert all(line.isprintable() for line in lacking)


@pytest.mark.parametrize(
    "body", ["", "<html>", "[]", '{"data": 7}', '{"data": [{"name": "x"}]}', "x" * 2_000_000]
)
async def test_a_server_that_lies_has_no_models(body: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=body)

    async with shop(answer) as url:
        assert await models_of(f"{url}/v1") == []


async def test_a_model_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="--model NAME"):
        await completed(Answers(base_url="http://127.0.0.1:9/v1"), None)


def test_options_that_are_no_configuration_write_nothing(tmp_path: Path) -> None:
    a = Answers("ftp://example", "m", "x", "", "en")
    with pytest.raises(ConfigError, match="is no URL"):
        write(tmp_path / "bad.toml", a, force=False)
    assert not (tmp_path / "bad.toml").exists()
    assert "ftp://example" in text_of(a)
