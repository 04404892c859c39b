"""Tools of an agent that are Python functions."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from offhook.media.leg import CallInfo
from offhook.web.config.agents import Agent
from offhook.web.config.config import ConfigError
from offhook.web.config.tools import PythonFunction
from offhook.web.edge.edge_io import Edge
from offhook.web.tools.python_tool_io import load
from offhook.web.tools.tool_result import MAX_RESULT_CHARS
from tests.pipeline.conversation.phone import calls, model, says
from tests.support.waiting import until
from tests.web.edge.agents.test_agent import Page, called

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHOP = '''
    import asyncio
    import time
    from pathlib import Path
    from typing import Annotated, Literal

    from pydantic import Field

    async def order_status(number: int, call, kind: Literal["bike", "part"] = "bike") -> dict:
        """Looks up where an order is.

        Ask for its number first.

        Args:
            number: the order's number
        """
        return {"number": number, "kind": kind, "caller": call.caller, "secret": 1}


    def slow_thread(seconds: Annotated[float, Field(description="how long")]) -> str:
        """Waits."""
        time.sleep(seconds)
        return "awake"


    async def forever() -> None:
        """Never ends."""
        try:
            await asyncio.Event().wait()
        finally:
            Path("cancelled").touch()


    async def nothing() -> None:
        """Does something."""


    async def broken() -> None:
        """Fails."""
        raise ValueError("no such order")


    async def huge() -> str:
        """Says a lot."""
        return "x" * 20_000


    async def odd() -> object:
        """Returns what is no JSON."""
        return object()


    async def undocumented(number: str) -> str:
        return number


    async def anything(**more: str) -> str:
        """Takes anything."""
        return ""


    async def of_a_type(path: asyncio.Event) -> str:
        """Takes what no model can give."""
        return ""
'''


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "my_shop.py").write_text(textwrap.dedent(SHOP))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("my_shop", None)


def tool(function: str, **more: Any) -> PythonFunction:
    about = {"name": function, "function": f"my_shop:{function}", **more}
    return PythonFunction.model_validate(about)


async def result_of(
    edge: Edge, tool: PythonFunction, **arguments: Any
) -> tuple[Any, dict[str, Any]]:
    """Returns what the model got of a call of the tool, and what it was told of the tool."""
    page = Page()
    page.info = CallInfo(edge="webrtc", caller="+4930")
    async with model() as endpoint:
        endpoint.answers = [[calls(tool.name, **arguments)], [says("It is.")]]
        agent = Agent(
            kind="openai", base_url=endpoint.url, model="m", greeting="Hello.", tools=(tool,)
        )
        async with called(edge, {"desk": agent}, page):
            await until(lambda: page.words() == "Hello.")
            page.hear(type="send-text", id="1", data={"content": "Where is it?"})
            await until(lambda: page.words().endswith("It is."))
        (result,) = endpoint.results()
        given = endpoint.requests[0]["tools"]
    return result, next(t["function"] for t in given if t["function"]["name"] == tool.name)


async def test_signature_and_docstring_are_what_the_model_is_told(edge: Edge) -> None:
    one = tool("order_status", fields=["number", "kind", "caller"])
    result, told = await result_of(edge, one, number=7)
    assert result == {"number": 7, "kind": "bike", "caller": "+4930"}
    assert told["description"].startswith("Looks up where an order is.")
    assert "Ask for its number first." in told["description"]
    properties = told["parameters"]["properties"]
    assert properties["number"]["type"] == "integer"
    assert properties["number"]["description"] == "the order's number"
    assert properties["kind"]["enum"] == ["bike", "part"]
    assert told["parameters"]["required"] == ["number"]


@pytest.mark.parametrize(
    ("function", "arguments", "result"),
    [
        ("slow_thread", {"seconds": 0.01}, {"result": "awake"}),
        ("nothing", {}, {"status": "done"}),
        ("broken", {}, {"error": "ValueError: no such order"}),
        ("huge", {}, {"error": f"the result has over {MAX_RESULT_CHARS} characters"}),
        ("odd", {}, {"error": "the result is no JSON"}),
        ("forever", {}, {"error": "no result within 0.2 s"}),
    ],
)
async def test_the_model_is_told_what_has_come_of_it(
    edge: Edge, function: str, arguments: dict[str, Any], result: Any
) -> None:
    assert (await result_of(edge, tool(function, seconds=0.2), **arguments))[0] == result


async def test_arguments_of_another_type_are_an_error_for_the_model(edge: Edge) -> None:
    result, _ = await result_of(edge, tool("order_status"), number="seven", kind="car")
    assert result["error"].startswith("arguments: number: ")
    assert "kind: " in result["error"]


async def test_an_interruption_cancels_a_function(edge: Edge) -> None:
    page = Page()
    async with model() as endpoint:
        endpoint.answers = [[calls("forever")], [says("Yes?")]]
        agent = Agent(
            kind="openai",
            base_url=endpoint.url,
            model="m",
            greeting="Hello.",
            tools=(tool("forever", seconds=60),),
        )
        async with called(edge, {"desk": agent}, page):
            await until(lambda: page.words() == "Hello.")
            page.hear(type="send-text", id="1", data={"content": "Wait for it."})
            await until(lambda: endpoint.requests)
            page.hear(type="send-text", id="2", data={"content": "Stop."})
            await until(lambda: page.words().endswith("Yes?"))
            await until(Path("cancelled").exists)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("my_shop:gone", "has no attribute 'gone'"),
        ("no_shop:gone", "No module named 'no_shop'"),
        ("my_shop:undocumented", "needs a description, or its function a docstring"),
        ("my_shop:anything", "takes any arguments"),
        ("my_shop:of_a_type", "parameters of my_shop:of_a_type are no JSON"),
    ],
)
async def test_a_function_that_cannot_be_a_tool_stops_the_start(function: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(PythonFunction.model_validate({"name": "t", "function": function}))
