"""Runs a tool that is a Python function, of the operator's or of another package.

    async def order_status(number: str, call: CallInfo) -> dict[str, str]:
        '''Looks up where an order is. Ask for its number first.

        Args:
            number: the order's number
        '''

Its signature and its docstring are the schema. Two parameters are left out of it: `call`, who
calls, and `settings` if it is a `Section`, what the configuration has for the tool. A function that
is not async runs in a thread, which goes on when its time is over.
"""

import asyncio
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, get_type_hints

import docstring_parser
from loguru import logger
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from offhook.media.leg import CallInfo
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.directed_io import FunctionTool
from offhook.pipeline.speech.entry_points import path_of
from offhook.web.config.config import ConfigError
from offhook.web.config.section import Section
from offhook.web.config.tools import GROUP, PythonFunction
from offhook.web.tools.function_io import Fill, FunctionDefinition, function_of
from offhook.web.tools.tool_result import ToolFailed, shown

CALL = "call"
"""Name of the parameter that gets the details of the call."""
SETTINGS = "settings"
"""Name of the parameter that gets the settings."""
ERROR_CHARS = 500
"""Characters of an exception's message that the model sees."""


Read = Callable[[type[BaseModel], Mapping[str, Any]], BaseModel]
"""Returns the settings of a function as its class has them. Raises ConfigError."""


@dataclass(frozen=True)
class LoadedFunction:
    """A function, and what a model is told of it."""

    description: str
    arguments: type[BaseModel]
    wants_call: bool
    function: Callable[..., Any]
    settings: Mapping[str, BaseModel] = field(default_factory=dict)
    """The argument `settings`, if the function has it."""

    @property
    def schema(self) -> dict[str, Any]:
        """Returns the JSON Schema of its arguments."""
        schema = self.arguments.model_json_schema()
        return {"properties": {}, **{key: of for key, of in schema.items() if key != "title"}}

    async def run(self, tool: PythonFunction, arguments: Mapping[str, Any], info: CallInfo) -> Any:
        """Returns what the model sees of its result. Raises ToolFailed."""
        try:
            given = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            faults = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise ToolFailed(f"arguments: {'; '.join(faults)}"[:ERROR_CHARS]) from error
        values = {name: getattr(given, name) for name in type(given).model_fields}
        values |= self.settings
        if self.wants_call:
            values[CALL] = info
        try:
            async with asyncio.timeout(tool.seconds):
                if inspect.iscoroutinefunction(self.function):
                    result = await self.function(**values)
                else:
                    result = await asyncio.to_thread(self.function, **values)
        except TimeoutError as error:
            raise ToolFailed(f"no result within {tool.seconds:g} s") from error
        except (Exception, SystemExit) as error:
            line = logger.bind(a_minute=tool.function)
            line.opt(exception=error).error("tool {}: {} failed", tool.name, tool.function)
            raise ToolFailed(f"{type(error).__name__}: {error}"[:ERROR_CHARS]) from error
        if isinstance(result, BaseModel):
            result = result.model_dump(mode="json")
        return {"status": "done"} if result is None else shown(result, tool.fields)


class PythonFunctions:
    """The functions that are tools, of all calls of a process."""

    def __init__(self) -> None:
        self._loaded: dict[str, LoadedFunction] = {}
        """By what the configuration has of them."""

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Keeps the functions that there were if one cannot be imported inside."""
        before = self._loaded.copy()
        try:
            yield
        except ConfigError:
            self._loaded = before
            raise

    def imports(self, tool: PythonFunction, read: Read) -> Callable[[], str]:
        """Returns what imports a function and returns its signature. Raises ConfigError."""

        def signature() -> str:
            loaded = self._loaded[tool.model_dump_json()] = load(tool, read)
            return f"{tool.function}({', '.join(loaded.schema['properties'])})"

        return signature

    def functions(
        self, tool: PythonFunction, agent: object, call: Call, fill: Fill
    ) -> tuple[FunctionTool, ...]:
        """Returns a function for the model of a call."""
        loaded = self._loaded.get(tool.model_dump_json()) or load(tool)

        async def run(arguments: Mapping[str, Any]) -> Any:
            return await loaded.run(tool, arguments, call.leg.info)

        defined = FunctionDefinition(tool.name, loaded.description, loaded.schema, tool.function)
        return (function_of(defined, tool, call, fill, run),)

    async def close(self) -> None: ...


def _validated(model: type[BaseModel], given: Mapping[str, Any]) -> BaseModel:
    return model.model_validate(given)


def load(tool: PythonFunction, read: Read = _validated) -> LoadedFunction:
    """Imports a function; `read` validates its settings. Raises ConfigError."""
    module, _, name = (path_of(GROUP, tool.function) or "").partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module), name)
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
    except Exception as error:  # whatever the module raises
        why = f"{_place(error)}{type(error).__name__}: {error}"
        raise ConfigError(f"the tool {tool.name}: {tool.function} cannot be used: {why}") from error
    documented = docstring_parser.parse(inspect.getdoc(function) or "")
    about = {p.arg_name: p.description for p in documented.params if p.description}
    has_settings = _is_section(hints.get(SETTINGS))
    if tool.settings and not has_settings:
        raise ConfigError(f"the tool {tool.name}: {tool.function} has no settings")
    fields: dict[str, Any] = {}
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"the tool {tool.name}: {tool.function} takes any arguments")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            words = f"{parameter.name} of {tool.function} cannot be given by name"
            raise ConfigError(f"the tool {tool.name}: {words}")
        if parameter.name == CALL or (parameter.name == SETTINGS and has_settings):
            continue
        required = parameter.default is parameter.empty
        default = ... if required else parameter.default
        described = Field(default, description=about.get(parameter.name))
        fields[parameter.name] = (hints.get(parameter.name, str), described)
    description = tool.description or (documented.description or "").strip()
    if not description:
        raise ConfigError(f"the tool {tool.name} needs a description, or its function a docstring")
    try:
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
        arguments = create_model(name, __config__=config, **fields)
        made = LoadedFunction(description, arguments, CALL in parameters, function)
        _ = made.schema
    except Exception as error:  # pydantic's, of types that are no JSON
        words = f"the parameters of {tool.function} are no JSON: {str(error).splitlines()[0]}"
        raise ConfigError(f"the tool {tool.name}: {words}") from error
    if has_settings:
        made = replace(made, settings={SETTINGS: read(hints[SETTINGS], tool.settings)})
    return made


def _place(error: Exception) -> str:
    """Returns the file and line of the builder's that raised an error, as "shop.py:7: "; empty if
    there is none below the folder in which the server is started."""
    here = os.getcwd()
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    own = [(file, line) for file, line in places if file.startswith(f"{here}{os.sep}")]
    own = [(file, line) for file, line in own if "site-packages" not in file]
    return f"{os.path.relpath(own[-1][0], here)}:{own[-1][1]}: " if own else ""


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Section)
