"""Asks the agents' language models for a token, for /readyz and the doctor: only an answer shows
that address, key, model and account are right."""

import asyncio
import json
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from loguru import logger

from offhook.pipeline.conversation.agents.model_requests import ModelTraits
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.openai.answers import error_words, model_ids, plain, table
from offhook.pipeline.speech.openai.client_io import OpenAiServer
from offhook.pipeline.speech.streams.retry import AttemptFailed
from offhook.web.config.config import Agent, Config

PROBE_S = 60.0
"""Interval in s between two probes of a model that answers: each costs a token."""
RETRY_S = 10.0
"""Interval in s between two probes of a model that does not answer."""
ANSWER_S = 10.0
"""Time limit in s for the token; then the model counts as unavailable."""
TOLERATED = 1
"""Consecutive failed probes tolerated before a model counts as unavailable."""
NO_LIST = (404, 405, 501)
"""Statuses of servers that respond but have no model list."""
QUESTION = "Say yes."
ANSWER_TOKENS = 16
"""Maximum tokens of the answer; models that reason refuse to be limited to fewer."""


def server_of(name: str, agent: Agent) -> OpenAiServer:
    """Returns the client of an agent's model; `name` is "agent" or that in [agents]."""
    section = "agent" if name == "agent" else f"agents.{name}"
    parts = urlsplit(agent.base_url)
    if agent.api_key:  # which goes where a password of the URL would
        parts = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    options = agent.options
    return OpenAiServer(
        *("agent", parts.geturl(), agent.api_key, agent.model),
        section=section,
        headers=options.headers,
        query=options.query,
        secrets=options.secrets(),
    )


async def ask_for_token(server: OpenAiServer, agent: Agent) -> None:
    """Asks a language model for a token. Raises AttemptFailed."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await _ask_for_token(server, agent)
    except TimeoutError as error:
        raise AttemptFailed(f"it took longer than {ANSWER_S:g} s", fault="timeout") from error


async def _ask_for_token(server: OpenAiServer, agent: Agent) -> None:
    """Raises AttemptFailed."""
    traits = ModelTraits(agent.model)
    messages = [{"role": "user", "content": QUESTION}]
    params = {"model": agent.model, "messages": messages, "max_tokens": ANSWER_TOKENS}
    while True:
        body = traits.accepted(params)
        body.pop("extra_body")
        try:
            async with server.ask("POST", "/chat/completions", ANSWER_S, json=body) as response:
                return _check_answer(await server.body(response, ANSWER_S))
        except AttemptFailed as failed:
            if traits.learn(failed.status or 0, str(failed), body) is None:
                raise


def _check_answer(data: bytes) -> None:
    """Raises AttemptFailed if this is no answer of a chat API, which may be a stream unasked."""
    first = data.lstrip(b"\xef\xbb\xbf \r\n")
    if first.startswith((b"data:", b"event:", b":")):
        lines = (line[5:] for line in first.splitlines() if line.startswith(b"data:"))
        answers: list[Any] = []
        for line in lines:
            with suppress(ValueError):
                answers.append(json.loads(line))
        answer = next((a for a in answers if isinstance(a, dict)), {})
    else:
        answer = table(data)
    if answer.get("error"):
        raise AttemptFailed(f"it refuses ({plain(error_words(answer)[0])})", hopeless=True)
    if not isinstance(choices := answer.get("choices"), list) or not choices:
        raise AttemptFailed("what is there answers, but not as a chat API does", hopeless=True)


async def describe_model(name: str, agent: Agent) -> str:
    """Describes a language model that has answered. Raises EngineError, which says whose server it
    is and what that says."""
    server = server_of(name, agent)
    try:
        await ask_for_token(server, agent)
    except AttemptFailed as failed:
        raise EngineError(server.explain(failed), failed.fault) from failed
    finally:
        await server.close()
    return f"{server.name}, answers"


class AgentProbe:
    """Probes one agent's model: a language model by asking for a token, a speech-to-speech model by
    its server's list of models."""

    def __init__(self, name: str, agent: Agent) -> None:
        self.name, self.agent = name, agent
        self.why = "not asked yet"
        """Why the model is unavailable; empty if it is available."""
        self._server = server_of(name, agent)
        self._failed = 0

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                await self._ask()
                await asyncio.sleep(RETRY_S if self._failed else PROBE_S)
        finally:
            await self._server.close()

    async def _ask(self) -> None:
        try:
            if self.agent.kind == "openai":
                await ask_for_token(self._server, self.agent)
            else:
                await self._ask_for_list()
        except AttemptFailed as failed:
            return self._note(self._server.explain(failed))
        self._failed = 0
        if self.why:
            logger.info("agent {}: the language model can be asked", self.name)
        self.why = ""

    async def _ask_for_list(self) -> None:
        """Raises AttemptFailed. Not all models of a Realtime API are listed: another offhook's
        agents are not."""
        try:
            async with self._server.ask("GET", "/models", ANSWER_S) as response:
                model_ids(await self._server.body(response, ANSWER_S))
        except AttemptFailed as failed:
            if failed.status not in NO_LIST:
                raise

    def _note(self, why: str) -> None:
        self._failed += 1
        if (self._failed > TOLERATED and not self.why) or (self._failed == 1 and self.why):
            logger.error("agent {}: not ready: {}", self.name, why)
        if self._failed > TOLERATED or self.why:
            self.why = why


class AgentProbes:
    """The probes of all agents with `ready_probe`; without any, always ready."""

    def __init__(self, config: Config) -> None:
        self._probes = _wanted(config)
        self._tasks: dict[AgentProbe, asyncio.Task[None]] = {}
        """Running probes, including removed ones that have not ended."""

    def start(self) -> None:
        for probe in self._probes:
            if probe not in self._tasks:
                self._run(probe)

    def _run(self, probe: AgentProbe) -> None:
        task = asyncio.create_task(probe.run(), name=f"probe {probe.name}")
        self._tasks[probe] = task
        task.add_done_callback(lambda task: self._tasks.pop(probe))

    def use(self, config: Config) -> None:
        """Applies a new configuration. Unchanged agents keep their state, and a new agent does not
        make a running server unready."""
        before, self._probes = self._probes, []
        for new in _wanted(config):
            same = (old for old in before if (old.name, old.agent) == (new.name, new.agent))
            if (probe := next(same, new)) is new:
                new.why = ""
            self._probes.append(probe)
        for old in before:
            if old not in self._probes and old in self._tasks:
                self._tasks[old].cancel()
        self.start()

    @property
    def gone(self) -> list[str]:
        """Returns the agents whose models are unavailable."""
        return [probe.name for probe in self._probes if probe.why]

    async def close(self) -> None:
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _wanted(config: Config) -> list[AgentProbe]:
    agents = (("agent", config.agent), *config.agents.items())
    return [AgentProbe(name, agent) for name, agent in agents if agent.ready_probe]
