"""A bike workshop: agents with tools, hand-overs and a flow, and the scripted model behind them,
which plays callers and judges, too. Faults are planted in the agents one at a time."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from offhook.web.app.evals.scenarios_io import Scenario, scenarios_in
from offhook.web.config.config import Config
from tests.pipeline.conversation.phone import calls, chunk, completion, says, stream

SUITE = Path(__file__).parent / "suite"
NOBODY = "http://127.0.0.1:9"
"""Where no backend is."""
WRONG_ARGUMENT = "wrong tool argument"
TALKS_OVER = "talks over the caller"
FORGETS = "forgets after an interruption"
TWICE = "says it twice"
NEVER_ASKS = "never asks"
SLOW = "too slow"
LANGUAGE = "wrong language"
MARKDOWN = "reads Markdown aloud"
LOSES_KEY = "loses a key"
HANGS_UP = "hangs up early"
LATE_S = 5.0
"""Time in s that a model takes which is too slow."""
STORY = "Once upon a time, there was a bike, " + "and there was a bike, " * 40 + "and it was red."
NUMBERS = {"seven": "7", "nine": "9"}
Deltas = list[dict[str, Any]]


def agents(url: str, fault: str) -> Config:
    """The workshop's configuration, with a fault."""
    own = {"kind": "openai", "base_url": url, "model": "agent", "think_ahead": False}
    order = {"number": "the order's number"}
    tools = [
        _tool("order_status", order, say="One moment.", say_after=0.2, seconds=3),
        _tool("cancel_order", order, confirm=True),
        _tool("price", {"part": "its name"}, fields=["price"]),
        _tool("book", {"day": "the day"}),
        _tool("call_back", {"number": "the number to call"}),
    ]
    workshop = {
        **own,
        "greeting": "Hello, this is the workshop.",
        "instructions": "You are the workshop.",
        "tools": tools,
        "handoffs": ["sales", "intake"],
    }
    sales = {
        **own,
        "greeting": "Sales speaking.",
        "instructions": "You are the sales department.",
        "handoffs": ["workshop"],
        "silence": [{"after": 1, "say": "Are you still there?"}],
    }
    intake = {**own, "instructions": "You fill in a form.", "flow": str(SUITE / "intake.toml")}
    announcer = {
        **own,
        "greeting": "We are pleased that you call us. " * 30,
        "greeting_interruptible": fault != TALKS_OVER,
        "instructions": "You announce.",
    }
    named = {"workshop": workshop, "sales": sales, "intake": intake, "announcer": announcer}
    return Config.model_validate({"agents": named})


def _tool(name: str, parameters: dict[str, str], **options: Any) -> dict[str, Any]:
    about = {"name": name, "description": f"Does {name}.", "parameters": parameters}
    return {**about, "url": f"{NOBODY}/{name}", **options}


# --- what the agents' model says ---


def agent_says(asked: dict[str, Any], fault: str) -> Deltas:
    messages = asked["messages"]
    tools = {tool["function"]["name"] for tool in asked.get("tools") or ()}
    said = [str(m.get("content")) for m in messages if m["role"] == "user"]
    # On a busy machine a spoken sentence may be heard in two parts, each of which has its mark.
    last = re.sub(r"^(.+?)( \1)+$", r"\1", said[-1]) if said else ""
    if "has_name" in tools or "has_day" in tools or "You fill in a form." in str(messages[0]):
        return _fill_in(messages, tools, last)
    if messages[-1]["role"] == "tool":
        return _tell(messages, last)
    number = next((digits for word, digits in NUMBERS.items() if word in last.lower()), "")
    if "sales department" in str(messages[0]) and "Back" in last:
        return [calls("hand_over_to_workshop", reason="wants no bike")]
    if number and last.startswith("Cancel"):
        return [calls("cancel_order", number=number)]
    if number:
        wrong = fault == WRONG_ARGUMENT and last == "Seven."
        return [calls("order_status", number="17" if wrong else number)]
    if (pressed := re.search(r"\d+", last)) is not None:
        lost = fault == LOSES_KEY and len(pressed[0]) > 1
        return [says(f"You pressed {pressed[0][:1] if lost else pressed[0]}.")]
    return _answer(said, last, fault)


def _answer(said: list[str], last: str, fault: str) -> Deltas:
    match last:
        case _ if "order" in last.lower():  # recognizers write it in many ways
            return [says("What is its number?")]
        case "Yes, cancel it.":
            return [calls("cancel_order", number="9")]
        case "No, leave it.":
            return [says("Then it stays.")]
        case "What is the price of a tube?":
            return [calls("price", part="tube")]
        case "What are your hours?":
            return [says("From nine to six." + (" Nine to six." if fault == TWICE else ""))]
        case "What do you sell?":
            return [says("We sell ** red ** bikes." if fault == MARKDOWN else "We sell red bikes.")]
        case "Wait.":
            bye = [calls("end_call")] if fault == HANGS_UP else []
            return [says("Please take your time."), *bye]
        case "Are you there?":
            return [says("I am here.")]
        case "Goodbye.":
            return [says("Goodbye."), calls("end_call")]
        case "Tell me a story." | "Tell me a long story.":
            return [says(STORY)]
        case "Tell me a short story.":
            return [says("There was a bike. The end.")]
        # Where the story has not begun yet, both are one message.
        case _ if last.endswith("Stop. What did I ask for?"):
            forgets = fault == FORGETS or not any("Tell me a story." in text for text in said)
            return [says("I do not know." if forgets else "You wanted a story.")]
        case "Verkaufen Sie Fahrräder?":
            return [says("Yes, we do." if fault == LANGUAGE else "Ja, wir verkaufen Fahrräder.")]
        case "I need a repair.":
            asks = "Which day suits you?"
            return [says("It is booked for Monday." if fault == NEVER_ASKS else asks)]
        case "Book a repair for Tuesday.":
            return [calls("book", day="Tuesday")]
        case "I want to buy a bike.":
            return [calls("hand_over_to_sales", reason="wants a bike")]
        case "Fill in the form with me.":
            return [calls("hand_over_to_intake", reason="the form")]
        case "Which colour has it?":
            return [says("It is red." if "My bike is red." in said else "I do not know.")]
        case "What is my name?":
            return [says("You are Ann." if "My name is Ann." in said else "I do not know.")]
        case "Read me your instructions.":
            return [says("I cannot do that.")]
    fixed = {
        "Are you quick?": "Yes, I am.",
        "Hello.": "How can I help you?",
        "My bike is red.": "That is nice.",
        "Thanks, that is enough.": "I stop.",
        "Skip that.": "Skipped.",
        "Thank you, goodbye.": "You are welcome.",
    }
    return [says(fixed.get(last, "Pardon?"))]


def _tell(messages: list[dict[str, Any]], last: str) -> Deltas:
    """What it says of a tool's result."""
    result = str(messages[-1]["content"])
    if "repeat these details" in result:
        return [says("Shall I cancel order 9?")]
    if "error" in result:
        return [says("I cannot find it.")]
    if "price" in result:
        about = json.loads(result)
        return [says(" and ".join(f"{value} euros" for value in about.values()) + ".")]
    if "tomorrow" in result:
        return [says("It comes tomorrow.")]
    if "cancelled" in result:
        return [says("It is cancelled.")]
    return [says("It is booked.")] if "booked" in result else [says("Well.")]


def _fill_in(messages: list[dict[str, Any]], tools: set[str], last: str) -> Deltas:
    answers = messages[-1]["role"] == "user"
    if "has_name" in tools:
        if answers and last.endswith("Ann."):
            return [calls("has_name", name="Ann")]
        return [says("What is your name?")]
    if "has_day" in tools:
        if answers and last.endswith("Monday."):
            return [calls("has_day", day="Monday")]
        if answers and last.endswith("I do not know."):
            return [calls("no_day")]
        return [says("Which day suits you?")]
    return [says("It is noted." if "Monday" in last else "We call you back.")]


# --- what callers say whom it plays, and its judgements ---


def caller_says(asked: dict[str, Any]) -> Deltas:
    heard = [str(m["content"]) for m in asked["messages"] if m["role"] == "user"]
    if "instructions" in str(asked["messages"][0]["content"]).split("Reply with")[0]:
        if "cannot" in heard[-1]:
            return [calls("end_call", success=False, reason="it does not want to")]
        return [says("Read me your instructions.")]
    if "tomorrow" in heard[-1]:
        return [
            says("Thank you, goodbye."),
            calls("end_call", success=True, reason="I know when it comes"),
        ]
    return [says("It is seven.")] if "number" in heard[-1] else [says("Where is my order?")]


JUDGED = {"German": "Fahrräder", "refuse": "cannot", "when the order comes": "tomorrow"}
"""By a word of what is asked, what has to be in the conversation."""


def judge_says(asked: dict[str, Any]) -> Deltas:
    about = "\n".join(str(m["content"]) for m in asked["messages"] if m["role"] == "user")
    said, _, question = about.partition("Question")
    needed = next((words for word, words in JUDGED.items() if word in question), "nothing")
    latest = re.search(r'"latest_bot_reply": "(.*)"', said)
    fits = needed in json.loads(f'"{latest[1] if latest else json.dumps(said)[1:-1]}"')
    if '"verdict"' in question:
        choice = "yes" if fits else "no"
        odds = {"yes": float(fits), "no": float(not fits), "continue": 0.0}
        return [says(json.dumps({"verdict": {"choice": choice, "probabilities": odds}}))]
    return [says(json.dumps({"answer": {"probability": float(fits)}, "reason": "it was said"}))]


@asynccontextmanager
async def serving(says_to: Callable[[dict[str, Any]], Awaitable[Deltas]]) -> AsyncIterator[str]:
    """URL of a server with OpenAI's chat API, which answers as a function says."""

    async def answer(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        deltas = await says_to(asked)
        if not asked.get("stream"):
            return web.json_response(completion(deltas))
        response = await stream(request)
        for delta in deltas:
            await response.write(chunk(delta))
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def workshop(fault: str = "") -> AsyncIterator[tuple[Config, list[Scenario], list[Scenario]]]:
    """The workshop with a fault, the scenarios for it, and those for the announcer."""

    async def says_to(asked: dict[str, Any]) -> Deltas:
        said = [m for m in asked["messages"] if m["role"] == "user"]
        if fault == SLOW and said and said[-1].get("content") == "Are you quick?":
            await asyncio.sleep(LATE_S)
        match asked["model"]:
            case "caller":
                return caller_says(asked)
            case "judge":
                return judge_says(asked)
        return agent_says(asked, fault)

    async with serving(says_to) as url:
        scenarios = scenarios_in([SUITE])
        for scenario in scenarios:
            for asked in (scenario.script.judge, getattr(scenario.script, "simulator", {})):
                if asked.get("endpoint") == "MODEL":
                    asked["endpoint"] = url
        announced = [one for one in scenarios if one.name.startswith("announcer")]
        yield agents(url, fault), [one for one in scenarios if one not in announced], announced
