"""What `offhook.testing` asks of other people's tools: it finds what is wrong."""

import asyncio
import contextlib
from typing import Any

import pytest

from offhook.testing import ToolTests
from offhook.web.config.section import Section
from offhook.web.tools import python_tool_io

SCHEMA = "test_its_schema_describes_the_function_and_each_argument"
RESULT = "test_its_result_is_json_of_a_moderate_length"
CANCELLED = "test_it_is_async_and_ends_when_the_turn_is_cancelled"


class Settings(Section):
    factor: int = 1


async def well(number: int, settings: Settings) -> dict[str, int]:
    """Multiplies.

    Args:
        number: what is multiplied
    """
    await asyncio.sleep(0.01)
    return {"product": number * settings.factor}


async def undescribed(number: int) -> int:
    """Returns a number."""
    return number


async def long(number: int) -> str:
    """Says a lot.

    Args:
        number: nobody knows
    """
    return "x" * 100_000


async def goes_on(number: int) -> str:
    """Is not to be stopped.

    Args:
        number: seconds
    """
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(number)
    await asyncio.sleep(number)
    return "done"


def of_a_thread(number: int) -> int:
    """Blocks.

    Args:
        number: nobody knows
    """
    return number


def suite_of(name: str) -> Any:
    class Tests(ToolTests):
        function = f"{__name__}:{name}"

        def arguments(self) -> dict[str, Any]:
            return {"number": 2}

    return Tests()


class TestWell(ToolTests):
    function = f"{__name__}:well"

    def arguments(self) -> dict[str, Any]:
        return {"number": 2}

    def settings(self) -> dict[str, Any]:
        return {"factor": 3}

    def test_settings_reach_it(self) -> None:
        assert asyncio.run(self._called({"number": 2})) == {"product": 6}


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        ("undescribed", SCHEMA),
        ("long", RESULT),
        ("of_a_thread", CANCELLED),
        ("goes_on", CANCELLED),
    ],
)
def test_a_fault_is_found(function: str, fault: str) -> None:
    with pytest.raises((AssertionError, python_tool_io.ToolFailed)):
        getattr(suite_of(function), fault)()
