"""Engines that run elsewhere: at an address, or in another environment of this machine."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.speech import engines
from offhook.pipeline.speech.engine_spec import EngineSpec, Kind
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.web.config.config import Config, ConfigError, load
from offhook.web.workers.engines import engines_io
from offhook.web.workers.engines.engines_io import (
    check_engine,
    open_recognizer,
    open_synthesizer,
    own_python,
)
from offhook.web.workers.local_worker_io import local_workers, on_demand
from offhook.web.workers.worker_child_io import ChildSettings

ASR_OPENAI = '[asr]\nengine = "openai"'


def configured(tmp_path: Path, *lines: str) -> Config:
    path = tmp_path / "offhook.toml"
    path.write_text("\n".join(lines))
    return load(path, {})


@pytest.mark.parametrize(
    "url", ["http://gpu:8000/v1", "https://api.openai.com/v1", "http://[::1]:8000"]
)
def test_a_server_of_openais_api_has_an_address_with_a_path(tmp_path: Path, url: str) -> None:
    config = configured(tmp_path, "[asr]", 'engine = "openai"', f'url = "{url}"')
    assert config.asr.url == url


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ((ASR_OPENAI,), r"asr\.url is required"),
        (('[tts]\nengine = "openai"',), r"tts\.url is required"),
        ((ASR_OPENAI, 'url = "gpu:8000"'), "asr.url: .*not http://host:port/v1"),
        ((ASR_OPENAI, 'url = "unix:/tmp/s"'), "asr.url: .*not http://host:port/v1"),
        (('[tts]\nengine = "openai"', 'url = "http://me:secret@gpu/v1"'), "tts.url: .*not http"),
        (('[asr]\nurl = "http://gpu:8000/v1"',), "asr.url: .*or unix:PATH"),
        (('[asr]\nurl = ["http://a:7870", "b:7870"]',), "asr.url: .*or unix:PATH"),
        ((ASR_OPENAI, 'url = ["http://a/v1", "http://b/v1"]'), "asr.url: .*one server"),
        ((ASR_OPENAI, 'url = "http://a/v1"', "max_requests = 0"), "max_requests"),
    ],
)
def test_an_address_that_cannot_be_stops_the_server(
    tmp_path: Path, lines: tuple[str, ...], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        configured(tmp_path, *lines)


@pytest.mark.parametrize(
    ("line", "urls"),
    [
        ('url = ["http://a:7870", "unix:/s"]', ("http://a:7870", "unix:/s")),
        ('url = ["http://a:7870"]', ("http://a:7870",)),
        (
            'url = "http://ray:8000/workers/asr?model=large"',
            ("http://ray:8000/workers/asr?model=large",),
        ),
        ("url = []", ()),
        ('url = ""', ()),
    ],
)
def test_workers_are_one_url_or_several(tmp_path: Path, line: str, urls: tuple[str, ...]) -> None:
    config = configured(tmp_path, "[asr]", line)
    assert config.asr.urls == urls
    assert bool(config.asr.url) == bool(urls)


def test_a_server_elsewhere_is_not_opened_here() -> None:
    for open_engine in (lambda: open_recognizer("openai", AsrModels("")), _open_openai_voice):
        with pytest.raises(EngineError, match="url is required"):
            open_engine()


def _open_openai_voice() -> object:
    return open_synthesizer("openai")


def need(monkeypatch: pytest.MonkeyPatch, packages: dict[Kind, str]) -> None:
    """Has the official engines need other packages."""

    def spec_of(kind: Kind, name: str) -> EngineSpec:
        spec = engines.spec_of(kind, name)
        return replace(spec, own_environment=spec.own_environment and packages[kind])

    monkeypatch.setattr(engines_io, "spec_of", spec_of)


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packages: dict[Kind, str] = {"asr": "no_such_package", "tts": "no_such_package_either"}
    need(monkeypatch, packages)
    monkeypatch.setattr(engines_io, "CHECKOUT", tmp_path / "checkout")
    monkeypatch.chdir(tmp_path)


def other_python(path: Path, witness: Path) -> Path:
    """This Python, which leaves a word when it is started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "$@" > {witness}\nexec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.usefixtures("without_packages")
def test_an_official_engine_needs_an_environment_and_says_how_it_is_made() -> None:
    with pytest.raises(EngineError, match=r"make no-such-package-official.*\[asr\] python"):
        own_python("asr", "qwen3-asr-official")
    with pytest.raises(EngineError, match="/nowhere/python is none"):
        own_python("tts", "qwen3-tts-official", "/nowhere/python")
    with pytest.raises(EngineError, match="needs an environment of its own"):
        check_engine("asr", "qwen3-asr-official")
    assert own_python("asr", "qwen3-asr") == ""


@pytest.mark.usefixtures("without_packages")
def test_the_environment_that_make_makes_is_found(tmp_path: Path) -> None:
    made = tmp_path / "checkout/.venv-no-such-package/bin/python"
    other_python(made, tmp_path / "witness")
    assert own_python("asr", "qwen3-asr-official") == str(made)
    here = other_python(tmp_path / ".venv-no-such-package/bin/python", tmp_path / "witness")
    assert own_python("asr", "qwen3-asr-official") == str(here)
    with pytest.raises(EngineError, match="runs in another environment"):
        check_engine("asr", "qwen3-asr-official")


def test_where_the_package_is_this_python_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    need(monkeypatch, {"asr": "json"})
    assert own_python("asr", "qwen3-asr-official") == sys.executable
    check_engine("asr", "qwen3-asr-official")


async def test_a_worker_of_another_environment_is_started_with_its_python(tmp_path: Path) -> None:
    python = other_python(tmp_path / "bin/python", tmp_path / "witness")
    models = AsrModels("en-us")
    settings = ChildSettings("pocketsphinx", models, 8, 0, "INFO", str(python))
    async with on_demand(settings) as url:
        recognizer = RemoteRecognizer(url)
        await recognizer.start()
        await recognizer.close()
    assert "offhook.web.workers.worker_child_io" in (tmp_path / "witness").read_text()


@pytest.mark.usefixtures("without_packages")
async def test_the_configuration_names_the_python(tmp_path: Path) -> None:
    python = other_python(tmp_path / "bin/python", tmp_path / "witness")
    lines = '[asr]\nengine = "qwen3-asr-official"', f'python = "{python}"', 'model = "x"'
    async with local_workers(configured(tmp_path, *lines)) as config:
        assert config.asr.url.startswith("unix:")
    os.remove(python)
    with pytest.raises(EngineError, match=f"{python} is none"):
        async with local_workers(configured(tmp_path, *lines)):
            pass
