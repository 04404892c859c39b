"""The agents in `examples`: their configurations are valid, and their tools are used."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offhook.media.leg import CallInfo
from offhook.web.config.config import Config, load
from offhook.web.edge.text.text_edge_io import Exchange, conversation, text_edge
from offhook.web.tools import mcp_servers_io
from tests.pipeline.conversation.phone import Model, calls, model, says
from tests.support.waiting import HANGS_S

EXAMPLES = Path(__file__).parents[2] / "examples"
AGENTS = ("appointments", "orders", "triage", "reminder", "quiz", "pizzeria")
MAX_LINES = 60
MODULES = ("appointments", "quiz", "pizzeria")


@pytest.fixture
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Working in the folder of an example, as its user does."""
    folder = EXAMPLES / request.param
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in MODULES:
        sys.modules.pop(name, None)


def config_of(folder: Path, endpoint: Model | None = None) -> Config:
    """The configuration, with a scripted model in place of its models."""
    config = load(folder / "offhook.toml", {})
    if endpoint is None:
        return config

    def asks(agent: Any) -> Any:
        return agent.model_copy(update={"base_url": endpoint.url, "model": "scripted"})

    agents = {name: asks(agent) for name, agent in config.agents.items()}
    return config.model_copy(update={"agent": asks(config.agent), "agents": agents})


async def talk(
    folder: Path, agent: str, *lines: str, answers: list[Any], **variables: str
) -> tuple[list[Exchange], list[Any], dict[str, Any]]:
    """Returns what came of each line, what the tools gave, and what was noted of the caller."""
    info = CallInfo(edge="text", caller="+4930555", variables=variables)
    async with (
        model(*answers) as endpoint,
        text_edge(config_of(folder, endpoint)) as edge,
        conversation(edge, agent, info, lambda what: None) as talking,
    ):
        exchanges = [await talking.listen()]
        exchanges += [await talking.say(line) for line in lines]
        results = endpoint.results()
        noted = dict(talking.leg.collected)
    assert not any(exchange.faults for exchange in exchanges), exchanges
    return exchanges, results, noted


def example(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("here", [name], indirect=True)


@pytest.mark.parametrize("here", AGENTS, indirect=True)
def test_each_is_short_and_its_configuration_is_valid(here: Path) -> None:
    for file in here.iterdir():
        if file.suffix in (".py", ".toml"):
            assert len(file.read_text().splitlines()) <= MAX_LINES, file.name
    config_of(here)


@example("appointments")
async def test_an_appointment_is_booked_once_the_caller_agrees(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appointments.CALENDAR", tmp_path / "calendar.json")
    wanted = {"day": "2026-12-01", "time": "08:30", "name": "Anna Lindqvist"}
    exchanges, results, noted = await talk(
        *(here, "", "Tuesday morning, Anna Lindqvist.", "Half past eight.", "Yes, please."),
        answers=[
            [calls("note_details", full_name="Anna Lindqvist")],
            [calls("free_times", day="2026-12-01")],
            [says("Eight, or half past eight?")],
            [calls("book", **wanted)],
            [says("Half past eight, right?")],
            [calls("book", **wanted)],
            [says("See you on Tuesday.")],
        ],
    )
    assert exchanges[0].words == ["Hill Street Dental, good day. How can I help you?"]
    assert exchanges[-1].words[-1] == "See you on Tuesday."
    assert noted == {"full_name": "Anna Lindqvist"}
    _, free, asked, booked = results
    assert "08:30" in free["free"]
    assert "status" in asked  # nothing was booked before the caller had agreed
    assert booked == {"booked": "2026-12-01 08:30"}
    assert json.loads((tmp_path / "calendar.json").read_text()) == {
        "2026-12-01 08:30": "Anna Lindqvist"
    }


@example("orders")
async def test_an_order_is_found_by_a_server_of_tools(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcp")
    monkeypatch.setattr(mcp_servers_io, "START_S", HANGS_S)  # on a machine that does much else
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    exchanges, results, _ = await talk(
        *(here, "", "Where is order 4711?"),
        answers=[[calls("order_status", number=4711)], [says("It is in the workshop.")]],
    )
    assert results[0].get("status") == "in the workshop", results
    assert exchanges[-1].words == ["It is in the workshop."]


@example("triage")
async def test_a_fault_is_for_the_one_who_knows(here: Path) -> None:
    exchanges, _, noted = await talk(
        *(here, "", "The power is out in our street.", "Hill Street 7, nobody is hurt."),
        answers=[
            [calls("hand_over_to_faults", reason="a power cut")],
            [says("The caller reports a power cut.")],  # the summary
            [says("Where is it?")],
            [calls("note_details", address="Hill Street 7", danger=False)],
            [says("Somebody is on the way.")],
        ],
    )
    assert exchanges[1].agents == ["faults"]
    assert exchanges[-1].words[-1] == "Somebody is on the way."
    assert noted == {"address": "Hill Street 7", "danger": False}


@example("reminder")
async def test_who_is_reminded_is_greeted_by_name(here: Path) -> None:
    exchanges, _, noted = await talk(
        *(here, "reminder", "Yes, that suits."),
        answers=[[calls("note_details", suits=True)], [says("Thank you.")]],
        name="Ms Lindqvist",
        day="Tuesday",
        time="half past eight",
    )
    assert exchanges[0].words[0].endswith("Am I speaking with Ms Lindqvist?")
    assert noted == {"suits": True}


@example("quiz")
async def test_the_quiz_counts_right_answers(here: Path) -> None:
    answers: list[Any] = []
    for digit in "231":
        answers += [[calls("next_question")], [says("Which?")]]
        answers += [[calls("check_answer", digit=digit)], [says("Well.")]]
    answers += [[calls("next_question")], [says("That is all.")]]
    lines = [word for _ in "231" for word in ("Next.", "That one.")]
    _, results, _ = await talk(here, "", *lines, "Next.", answers=answers)
    assert [result["right"] for result in results if "answer" in result] == [True, True, True]
    assert results[-1] == {"done": True, "right": 3, "of": 3}


@example("pizzeria")
async def test_an_order_is_summed_up_in_german(here: Path) -> None:
    exchanges, results, noted = await talk(
        *(here, "", "Zwei Margherita und einen Salat, zum Abholen.", "Anna. Ja, bitte."),
        answers=[
            [calls("note_details", way="abholung")],
            [says("Das macht 22 Euro. Auf welchen Namen?")],
            [calls("place_order", items={"Margherita": 2, "Salat": 1})],
            [says("In 25 Minuten.")],
        ],
    )
    assert exchanges[0].words == ["Pizzeria Vesuvio, guten Tag. Was darf es sein?"]
    assert results[-1] == {"total_euros": 22.0, "minutes": 25}
    assert noted == {"way": "Abholung"}
