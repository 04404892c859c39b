"""Which calls are recorded, and what callers hear about it."""

from pathlib import Path
from typing import Any

import pytest

from offhook.web.config.config import Config
from offhook.web.config.server import Recording
from offhook.web.edge.edge_io import Edge
from tests.pipeline.conversation.phone import model, says
from tests.support.waiting import until
from tests.web.edge.agents.test_agent import called, said_by_flite
from tests.web.edge.recordings.test_pause import (
    agents,
    everything,
    fresh,
    lines_of,
    recording,
)
from tests.web.edge.test_history import keeping, records, written

__all__ = ["fresh"]
pytestmark = pytest.mark.asyncio(loop_scope="module")

NOTICE = "This call is recorded."


async def test_the_notice_comes_before_a_fixed_greeting(fresh: Edge, tmp_path: Path) -> None:
    settings = recording(tmp_path, notice=NOTICE)
    async with model() as scripted, keeping(fresh, records(tmp_path)):
        shop = agents(tmp_path, scripted.url)
        async with called(fresh, shop, recording=settings) as page:
            await until(lambda: "Hello there." in page.words())
        await written(fresh)
        assert fresh.records.kept is not None
        timeline = fresh.records.kept.store.timeline(page.call_id)
    assert page.words() == f"{NOTICE} Hello there."
    assert not scripted.requests
    [started] = [e for e in timeline if e["event"] == "recording_started"]
    assert (started["by"], started["notice"]) == ("settings", NOTICE)
    assert b'"notice":"This call is recorded."' in b"".join(lines_of(tmp_path))


async def test_the_notice_comes_before_a_greeting_of_the_models(
    fresh: Edge, tmp_path: Path
) -> None:
    settings = recording(tmp_path, notice=NOTICE)
    async with model([says("Good morning.")]) as scripted:
        shop = {
            name: agent.model_copy(update={"greeting": ""})
            for name, agent in agents(tmp_path, scripted.url).items()
        }
        async with called(fresh, shop, recording=settings) as page:
            await until(lambda: "Good morning." in page.words())
    assert page.words() == f"{NOTICE} Good morning."
    assert NOTICE not in str(scripted.requests[0]["messages"])


async def test_nobody_talks_over_the_notice(fresh: Edge, tmp_path: Path) -> None:
    settings = recording(tmp_path, notice=f"{NOTICE} So that we can learn from it.")
    async with model([says("At nine.")]) as scripted:
        shop = agents(tmp_path, scripted.url, "think_ahead = false\n")
        async with called(fresh, shop, recording=settings) as page:
            await until(lambda: "This" in page.words())
            page.feed(said_by_flite("hello, when are you open on sunday"))
            await until(lambda: "At nine." in page.words())
    assert page.words().startswith(f"{NOTICE} So that we can learn from it.")


async def test_an_agent_has_its_own_words_for_it(fresh: Edge, tmp_path: Path) -> None:
    settings = recording(tmp_path, notice=NOTICE)
    own = '[agents.shop.sentences]\nrecorded = "We record this."\n'
    async with model() as scripted:
        shop = agents(tmp_path, scripted.url, own)
        async with called(fresh, shop, recording=settings) as page:
            await until(lambda: "Hello there." in page.words())
    assert page.words() == "We record this. Hello there."


@pytest.mark.parametrize(
    ("enabled", "record", "is_recorded"),
    [
        ("always", "never", False),
        ("never", "always", True),
        ("on_demand", None, False),
        (True, None, True),
        (False, None, False),
    ],
)
async def test_an_agent_decides_for_its_calls(
    fresh: Edge, tmp_path: Path, enabled: Any, record: str | None, is_recorded: bool
) -> None:
    settings = recording(tmp_path, notice=NOTICE, enabled=enabled)
    own = f'record = "{record}"\n' if record else ""
    async with model() as scripted:
        shop = agents(tmp_path, scripted.url, own)
        async with called(fresh, shop, recording=settings) as page:
            await until(lambda: "Hello there." in page.words())
    assert (NOTICE in page.words()) == is_recorded
    assert bool(everything(tmp_path / "sound")) == is_recorded
    config = Config.model_validate({"recording": settings, "agents": shop})
    assert config.records_calls == (is_recorded or enabled in ("always", "on_demand"))


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (True, "always"),
        (False, "never"),
        ("true", "always"),
        ("FALSE", "never"),
        ("on_demand",) * 2,
    ],
)
async def test_what_was_true_or_false_still_is(given: Any, read: str) -> None:
    assert Recording.model_validate({"enabled": given}).enabled == read
