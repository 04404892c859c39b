"""Tests that a function must pass which is offered as a tool. They call it as a language model
does: by its schema, and with whatever a model may write.

    class TestInMorse(ToolTests):
        function = "offhook_morse.keyer:in_morse"

        def arguments(self):
            return {"text": "sos"}
"""

import asyncio
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from offhook.media.leg import CallInfo
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.tools import PythonFunction
from offhook.web.tools.agent_tools_io import AgentTools
from offhook.web.tools.python_tool_io import LoadedFunction, load
from offhook.web.tools.tool_result import ToolFailed

ENDS_S = 1.0
"""Time in s in which a cancelled function must have ended."""
TYPES = ("type", "anyOf", "allOf", "oneOf", "enum", "const", "$ref")
"""Keys of a schema that say what an argument may be."""


class ToolTests(ABC):
    """What every function does that is a tool."""

    function: ClassVar[str]
    """As in the configuration: a name, or an import path."""

    @abstractmethod
    def arguments(self) -> Mapping[str, Any]:
        """Returns arguments with which it succeeds."""

    def settings(self) -> Mapping[str, Any]:
        """Returns its settings."""
        return {}

    def test_its_schema_describes_the_function_and_each_argument(self) -> None:
        loaded = self._loaded()
        schema = loaded.schema
        assert loaded.description
        assert schema["type"] == "object"
        assert json.loads(json.dumps(schema)) == schema
        for name, about in schema["properties"].items():
            assert any(key in about for key in TYPES), f"{name} may be anything"
            assert about.get("description"), f"the model is not told what {name} is"

    def test_its_result_is_json_of_a_moderate_length(self) -> None:
        result = asyncio.run(self._called(self.arguments()))
        assert isinstance(result, dict)
        assert result

    def test_an_argument_that_it_does_not_have_is_an_error_for_the_model(self) -> None:
        with pytest.raises(ToolFailed, match="nobody_has_this"):
            asyncio.run(self._called({**self.arguments(), "nobody_has_this": 1}))

    def test_a_required_argument_that_is_missing_is_an_error_for_the_model(self) -> None:
        for name in self._loaded().schema.get("required", ()):
            others = {key: value for key, value in self.arguments().items() if key != name}
            with pytest.raises(ToolFailed, match=name):
                asyncio.run(self._called(others))

    def test_it_is_async_and_ends_when_the_turn_is_cancelled(self) -> None:
        assert inspect.iscoroutinefunction(self._loaded().function)

        async def cancelled() -> None:
            running = asyncio.create_task(self._called(self.arguments()))
            await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait((running,), timeout=ENDS_S)
            assert running.done(), "it goes on after the caller has interrupted"

        asyncio.run(cancelled())

    def test_calls_at_once_have_the_same_result(self) -> None:
        async def results() -> list[Any]:
            return await asyncio.gather(*(self._called(self.arguments()) for _ in range(5)))

        first, *others = asyncio.run(results())
        assert [other.keys() for other in others] == [first.keys()] * 4

    def test_a_setting_that_it_does_not_have_is_refused(self) -> None:
        tool = {"function": self.function, "settings": {**self.settings(), "nobody has this": 1}}
        agent = {"kind": "openai", "tools": [tool]}
        config = Config.model_validate({"agent": agent})
        (signature,) = AgentTools().imports(config).values()
        with pytest.raises(ConfigError, match="settings"):
            signature()

    def _loaded(self) -> LoadedFunction:
        return load(self._tool())

    def _tool(self) -> PythonFunction:
        table = {"function": self.function, "settings": self.settings()}
        return PythonFunction.model_validate(table)

    async def _called(self, arguments: Mapping[str, Any]) -> Any:
        """Returns what the model is told of a call. Raises ToolFailed."""
        return await self._loaded().run(self._tool(), arguments, CallInfo("text"))
