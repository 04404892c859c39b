"""`offhook serve --dev`: a file is changed, and the next call has it."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from loguru import logger

from offhook.media.leg import CallInfo
from offhook.web.config.config import load
from offhook.web.edge.builder import watch_io
from offhook.web.edge.builder.watch_io import watching
from offhook.web.edge.reload_io import Reload
from offhook.web.edge.text.text_edge_io import Exchange, TextEdge, conversation, text_edge
from tests.pipeline.conversation.phone import Model, calls, model, says
from tests.support.waiting import HANGS_S, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
FILE = Path("offhook.toml")
USED = "the configuration was read again: "
SHOP = '''
async def order_status(number: int) -> dict[str, str]:
    """Says where an order is."""
    return {"status": "%s"}
'''
FLOW = """initial = "first"
[nodes.first]
task = "%s"
functions = ["end_call"]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watch_io, "POLL_S", 0.02)
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    sys.modules.pop("my_shop", None)


def write(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.fixture
def written() -> Iterator[list[str]]:
    """What the terminal shows."""
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(message.record["message"]), level="INFO")
    yield lines
    logger.remove(sink)


@asynccontextmanager
async def developing() -> AsyncIterator[TextEdge]:
    config = load(FILE, {})
    async with text_edge(config) as edge:
        edge.agents.load(config)
        async with watching(FILE, Reload(edge, config, lambda: load(FILE, {}))):
            yield edge


async def called(edge: TextEdge, said: str = "") -> Exchange:
    """Returns what a new caller hears."""
    async with conversation(edge, "", CallInfo(edge="text"), lambda text: None) as talk:
        heard = await talk.listen()
        return await talk.say(said) if said else heard


def agent(more: str = "", endpoint: Model | None = None, greeting: str = "Hello.") -> str:
    kind = "frontdesk"
    if endpoint is not None:
        kind = f'openai"\nbase_url = "{endpoint.url}"\nmodel = "m'
    return f'[agent]\ngreeting = "{greeting}"\nkind = "{kind}"\n{more}'


async def test_the_next_call_has_what_was_written(written: list[str]) -> None:
    write(FILE, agent())
    async with developing() as edge:
        assert (await called(edge)).text == "Hello."
        write(FILE, agent(greeting="Ahoy."))
        await until(lambda: any("read again" in line for line in written))
        assert (await called(edge)).text == "Ahoy."
    said = written.index("offhook.toml: changed")
    assert written[said + 1] == f"{USED}[agent] greeting"


async def test_a_fault_is_told_with_its_line_and_the_old_goes_on(written: list[str]) -> None:
    write(FILE, agent())
    async with developing() as edge:
        write(FILE, agent("silense = []", greeting="Ahoy."))
        await until(lambda: any("is unchanged" in line for line in written))
        assert written[-1] == (
            "the configuration is unchanged: offhook.toml:4: agent.silense: there is no such key; "
            "did you mean [[agent.silence]]?"
        )
        assert (await called(edge)).text == "Hello."
        write(FILE, agent(greeting="Ahoy."))
        await until(lambda: any("read again" in line for line in written))
        assert (await called(edge)).text == "Ahoy."


async def test_files_that_the_configuration_names_are_watched(written: list[str]) -> None:
    write(Path("prompt.txt"), "Speak of bicycles.")
    write(Path("flow.toml"), FLOW % "Ask for the day.")
    async with model(*([says("Yes.")] for _ in range(9))) as endpoint:
        write(FILE, agent('instructions_file = "prompt.txt"\nflow = "flow.toml"', endpoint))

        async with developing() as edge:
            for file, text, key, told in (
                ("prompt.txt", "Speak of boats.", "instructions", "Speak of boats."),
                ("flow.toml", FLOW % "Ask for it.", "what a file of it says", "Ask for it."),
            ):
                written.clear()
                write(Path(file), text)
                await until(lambda key=key: f"{USED}[agent] {key}" in written)
                assert f"{file}: changed" in written
                await called(edge, "Hello?")
                assert told in str(endpoint.requests[-1]["messages"])
            write(Path("flow.toml"), 'initial = "first"\n[nodes.other]\ntask = "x"\n')
            wrong = "flow.toml:1: initial: no node is called 'first' (there: other)"
            await until(lambda: any(wrong in line for line in written))


async def test_a_function_is_imported_anew_and_the_old_one_stays_while_it_is_wrong(
    written: list[str],
) -> None:
    write(Path("my_shop.py"), SHOP % "sent")
    async with model() as endpoint:
        endpoint.answers = [
            part for _ in range(3) for part in ([calls("order_status", number=7)], [says("So.")])
        ]
        write(FILE, agent('tools = [{function = "my_shop:order_status"}]', endpoint))
        async with developing() as edge:
            assert (await called(edge, "Where?")).tools[0].result == {"status": "sent"}
            write(Path("my_shop.py"), SHOP % "here")  # as long as before, and as old
            await until(lambda: any("read again" in line for line in written))
            assert (await called(edge, "Where?")).tools[0].result == {"status": "here"}
            write(Path("my_shop.py"), "import json\nnobody()\n")
            await until(lambda: any("is unchanged" in line for line in written))
            assert written[-1].endswith(
                "my_shop:order_status cannot be used: my_shop.py:2: NameError: "
                "name 'nobody' is not defined"
            )
            assert (await called(edge, "Where?")).tools[0].result == {"status": "here"}


async def test_a_file_that_was_missing_is_used_once_it_is_there(written: list[str]) -> None:
    write(FILE, agent())
    async with model([says("Yes.")]) as endpoint, developing() as edge:
        write(FILE, agent('instructions_file = "prompt.txt"', endpoint))
        await until(lambda: any("is unchanged" in line for line in written))
        assert "instructions_file prompt.txt: No such file or directory" in written[-1]
        write(Path("prompt.txt"), "Speak of boats.")
        await until(lambda: any("read again" in line for line in written))
        await called(edge, "Hello?")
        assert endpoint.requests[-1]["messages"][0]["content"].startswith("Speak of boats.")


async def test_the_server_is_started_with_it(folder: Path) -> None:
    write(FILE, "[server]\nport = 0\nprocesses = 2\n" + agent())
    environment = {key: value for key, value in os.environ.items() if "OFFHOOK" not in key}
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "offhook", "serve", "--dev"),
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    assert server.stderr is not None

    async def until_said(words: str) -> None:
        assert server.stderr is not None
        async with asyncio.timeout(HANGS_S):
            while words not in (line := (await server.stderr.readline()).decode()):
                assert line, "the server has ended"

    try:
        await until_said("--dev: a change of offhook.toml is used from the next call on")
        write(FILE, "[server]\nport = 0\nprocesses = 2\n" + agent(greeting="Ahoy."))
        await until_said(f"{USED}[agent] greeting")
        write(FILE, "[server]\nport = 0\nprocesses = 2\n" + agent("colour = 1"))
        await until_said("offhook.toml:7: agent.colour: there is no such key")
    finally:
        server.send_signal(signal.SIGTERM)
        async with asyncio.timeout(HANGS_S):
            await server.wait()
    assert server.returncode == 0
