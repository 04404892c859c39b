"""`offhook init`: writes a configuration of one agent, from five answers or from options."""

import asyncio
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from offhook.web.config.config import ConfigError, load
from offhook.web.workers.engines.abilities_io import check_engines

PORTS = (11434, 8000, 8080, 1234)
"""Ports of this machine at which a server of language models is looked for: those of Ollama, vLLM,
llama.cpp and LM Studio."""
LOOK_S = 2.0
"""Time limit in s to ask a server for its models."""
MAX_LIST_BYTES = 1 << 20
"""Maximum size of a list of models; a longer one counts as none."""

Ask = Callable[[str, str], str]
"""Asks the user; returns the answer, or the default (the second argument) for an empty one."""


@dataclass(frozen=True)
class Answers:
    """What the configuration is made of. None is asked for."""

    base_url: str | None = None
    """Of a language model's server; "" for the front desk."""
    model: str | None = None
    instructions: str | None = None
    greeting: str | None = None
    language: str | None = None
    """A BCP 47 tag; "" for English, which all engines speak."""


async def models_of(base_url: str) -> list[str]:
    """Returns the names of the models that a server has; none if it does not answer."""
    timeout = aiohttp.ClientTimeout(total=LOOK_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.get(f"{base_url.rstrip('/')}/models") as response,
        ):
            table = json.loads(await response.content.read(MAX_LIST_BYTES))
            return [str(model["id"]) for model in table["data"]]
    except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError, RecursionError):
        return []


async def servers_here() -> dict[str, list[str]]:
    """Returns the servers of language models on this machine, by URL, and their models."""
    urls = [f"http://127.0.0.1:{port}/v1" for port in PORTS]
    found = await asyncio.gather(*map(models_of, urls))
    return {url: models for url, models in zip(urls, found, strict=True) if models}


async def completed(answers: Answers, ask: Ask | None) -> Answers:
    """Returns the answers with those that are missing: asked for, or without `ask` the defaults."""
    a = answers
    question: Ask = ask or (lambda text, default: default)
    if a.base_url is None:
        found = await servers_here()
        usual = next(iter(found), "")
        words = "URL of a language model's server, with /v1 (empty: the front desk answers)"
        a = replace(a, base_url=question(words, usual))
        while ask is not None and a.base_url and (fault := _fault_of_url(a.base_url)):
            a = replace(a, base_url=ask(f"{fault}; once more", usual))
    if a.base_url and a.model is None:
        names = await models_of(a.base_url)
        listed = f" ({', '.join(names[:10])})" if names else ""
        a = replace(a, model=question(f"Name of the model there{listed}", next(iter(names), "")))
    if a.base_url and not a.model:
        raise ConfigError("a language model's server needs the name of a model: --model NAME")
    if a.greeting is None:
        a = replace(a, greeting=question("First words of the agent", "Hello, how can I help you?"))
    if a.base_url and a.instructions is None:
        usual = "You are on a phone call. Answer in one or two short spoken sentences."
        a = replace(a, instructions=question("What the agent is to do", usual))
    if a.language is None:
        a = replace(a, language=question("Language of the callers, as en or de-AT", "en"))
    return a


def text_of(a: Answers) -> str:
    """Returns the configuration."""
    code = (a.language or "en").partition("-")[0].lower()
    lines = [
        "# Who answers calls. `offhook chat` talks to it by text, `offhook doctor` tries all",
        "# parts, `offhook serve` takes calls. All keys: docs/reference/configuration.md",
        "[agent]",
    ]
    if a.base_url:
        lines += [
            'kind = "openai"                 # any server with OpenAI\'s chat API',
            f"base_url = {_quoted(a.base_url)}",
            f"model = {_quoted(a.model or '')}",
            '# api_key = "…"                 # or in the environment: OFFHOOK_AGENT_API_KEY',
            f"instructions = {_quoted(a.instructions or '')}",
        ]
    else:
        lines += ['kind = "frontdesk"              # a small receptionist, without a model']
    if a.greeting:
        lines += [f"greeting = {_quoted(a.greeting)}   # said at once"]
    if a.base_url:
        lines += [
            'silence = [{after = 10, hang_up = true}]   # or first {after = 8, say = "…"}',
            "",
            "# What the model may do: an HTTP request, or a Python function.",
            "# [[agent.tools]]",
            '# name = "order_status"',
            '# description = "Looks up where an order is. Ask for its number first."',
            '# parameters = {number = "the order\'s number"}',
            '# url = "https://shop.example/orders/{number}"',
        ]
    if code != "en":
        lines += [
            "",
            "# What callers speak, and what they are told.",
            f"[asr]\nlanguage = {_quoted(a.language or '')}",
            f"[tts]\nlanguage = {_quoted(code)}",
        ]
    lines += [
        "",
        "# Phones, here a PBX in the same network: docs/phones.md",
        "# [[sip.trunks]]",
        '# name = "pbx"',
        '# addresses = ["192.168.1.10"]',
    ]
    return "\n".join(lines) + "\n"


def write(file: Path, answers: Answers, *, force: bool) -> list[str]:
    """Writes the configuration once it was found to be one; returns what it asks of the engines
    that they cannot do yet. Raises ConfigError, also if the file is there and `force` is not."""
    check_place(file, force=force)
    text = text_of(answers)
    with tempfile.TemporaryDirectory(prefix="offhook-init-") as folder:
        tried = Path(folder) / file.name
        tried.write_text(text, encoding="utf-8")
        try:
            config = load(tried, {})
        except ConfigError as error:
            raise ConfigError(str(error).replace(str(tried), str(file))) from error
    try:
        check_engines(config)
        lacking = []
    except ConfigError as error:
        lacking = str(error).splitlines()
    file.write_text(text, encoding="utf-8")
    return lacking


def check_place(file: Path, *, force: bool) -> None:
    """Raises ConfigError if a file cannot be written there, or is there and may not be replaced."""
    if file.is_dir():
        raise ConfigError(f"{file} is a folder")
    if not file.parent.is_dir():
        raise ConfigError(f"there is no folder {file.parent}")
    if file.exists() and not force:
        raise ConfigError(f"{file} is there already: --force replaces it")


async def fault_of_server(a: Answers) -> str:
    """Returns what speaks against the language model's server; empty: nothing."""
    if not a.base_url:
        return ""
    names = await models_of(a.base_url)
    if not names:
        return f"{a.base_url}/models lists nothing: does the server run, and its URL end with /v1?"
    if a.model not in names:
        return f"the server has no model {a.model} (there: {', '.join(names[:10])})"
    return ""


def _fault_of_url(url: str) -> str:
    parts = urlsplit(url)
    is_one = parts.scheme in ("http", "https") and parts.hostname
    return "" if is_one else f"{url!r} does not begin with http:// or https://"


def _quoted(text: str) -> str:
    """Returns a text as a TOML string, which JSON's are too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
