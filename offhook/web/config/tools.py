"""An agent's tool, an HTTP request or a Python function, as the configuration describes it."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from offhook.pipeline.speech.entry_points import path_of
from offhook.web.config.section import Secret, Section, headers_besides
from offhook.web.http.webhook_signature import signing_key

IN_PATH = re.compile(r"(?<!\{)\{([A-Za-z_][\w-]*)\}(?!\})")
"""Matches an argument in a URL, as in `/orders/{number}`."""
OWN = (
    *("end_call", "gather_digits", "send_dtmf", "hold_call", "resume_call"),
    "transfer_call",
)
"""Names of the tools that agents have anyway."""
GROUP = "offhook.tools"
"""Entry points of the functions that other packages offer as tools."""
_OWN_HEADERS = ("host", "content-length", "content-type", "connection", "transfer-encoding")
_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")


class ToolOptions(Section):
    """What the caller hears of a tool, and when it runs."""

    say: Annotated[str, Field(max_length=2000)] = ""
    """What the caller hears if it takes longer than `say_after`; may contain variables."""
    say_after: float = Field(1.0, ge=0, le=60)
    """Time in s."""
    say_again: float = Field(8.0, ge=0, le=60)
    """Time in s after which it is said again while the tool runs; 0: it is said once."""
    sound: str = Field("", examples=["typing.wav"])
    """Sound file that the caller hears after `say_after`, again and again, whenever nobody speaks
    while the tool runs."""
    confirm: bool = False
    """Whether the caller has to agree: the first call runs nothing, and has the model repeat the
    arguments and ask. It runs once the caller has spoken and the model calls it again with the same
    arguments."""
    once: bool = False
    """Whether it runs once a call; a further time the model is told what came of the first."""
    on_failure: Annotated[str, Field(max_length=2000)] = ""
    """What the caller hears if it fails, instead of what the model would say; may contain
    variables."""
    end_turn: bool = False
    """Whether the model is not asked again after it: the turn ends with what was said."""

    @property
    def function_names(self) -> tuple[str, ...]:
        """Returns the names of its functions, as far as they are known at the start."""
        raise NotImplementedError

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yields the texts in which variables are filled in, with their keys."""
        yield "say", self.say
        yield "on_failure", self.on_failure


class NamedTool(ToolOptions):
    """A function that a language model may call."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$", examples=["order_status"])
    """What the model calls it; of a Python function by default the function's own name."""
    description: str = Field("", max_length=4000)
    """What the model is told that it does, and when to use it; of a Python function by default its
    docstring."""
    seconds: float = Field(10, gt=0, le=60)
    """Time limit in s; then the model is told that nothing came."""
    fields: tuple[str, ...] = ()
    """Fields of the JSON object that comes of it which the model sees; empty: all."""

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name in OWN:
            raise ValueError(f"{name} is a tool that agents have anyway")
        return name

    @property
    def function_names(self) -> tuple[str, ...]:
        return (self.name,)


class PythonFunction(NamedTool):
    """A tool that is a Python function, of the operator's or of another package."""

    function: str = Field(pattern=r"^[\w.-]+(:\w+)?$", examples=["shop:order_status"])
    """Python function that runs it, as "module:name", or the name by which a package offers it. Its
    signature has the parameters. The module is imported at the start, also from the folder in which
    the server is started."""
    settings: dict[str, Any] = Field({}, repr=False)
    """Settings of the function, if it has a parameter of that name."""

    @model_validator(mode="before")
    @classmethod
    def _has_a_name(cls, table: Any) -> Any:
        """By default that of the function."""
        if isinstance(table, dict) and isinstance(function := table.get("function"), str):
            return {"name": function.rpartition(":")[2], **table}
        return table

    @field_validator("function")
    @classmethod
    def _is_offered(cls, function: str) -> str:
        if path_of(GROUP, function) is None:
            raise ValueError(f'no package offers {function!r}, and "module:name" has a colon')
        return function


class HttpTool(NamedTool):
    """A tool that is an HTTP request."""

    url: str = Field(examples=["https://shop.example/orders/{number}"])
    """Address of the request that runs it. `{number}` in its path is an argument, `{{caller}}` in
    its path or query a variable of the call."""
    parameters: dict[str, Any] = Field({})
    """Its arguments: `{number = "the order's number"}`, where each is a required string, or a table
    such as `{type = "integer", description = "…", optional = true}`; or a whole JSON Schema with
    `type = "object"` and `properties`."""
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    """With GET, arguments that are not in the path go into the query; with others into a JSON
    object, the body."""
    headers: Annotated[dict[str, str], headers_besides(_OWN_HEADERS)] = Field(
        {}, repr=False, max_length=32
    )
    """Headers of the request, such as Authorization; never logged."""
    secret: Secret = ""
    """Signs the request by Standard Webhooks: `whsec_` and base64, or any text of 16 characters or
    more."""

    @field_validator("headers")
    @classmethod
    def _are_fixed(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if "{{" in value:
                raise ValueError(f"the value of {name} cannot depend on the call")
        return headers

    @field_validator("secret")
    @classmethod
    def _signs(cls, secret: str) -> str:
        if secret:
            signing_key(secret)
        return secret

    @model_validator(mode="after")
    def _has_a_url(self) -> Self:
        if not self.description:
            raise ValueError("description says to the model what it does, and is missing")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment:
            raise ValueError(f"url {self.url!r} is not one that begins with http:// or https://")
        if "{" in parts.netloc:
            raise ValueError(f"url {self.url!r}: its host cannot depend on the call")
        known = self.schema_of_arguments["properties"]
        if unknown := [name for name in IN_PATH.findall(parts.path) if name not in known]:
            raise ValueError(f"url has {{{unknown[0]}}}, which is not in parameters")
        required = self.schema_of_arguments.get("required", ())
        if optional := [name for name in IN_PATH.findall(parts.path) if name not in required]:
            raise ValueError(
                f"parameters: {optional[0]} stands in the path, and cannot be optional"
            )
        if IN_PATH.search(parts.query):
            raise ValueError("url: arguments stand in the path; GET puts the others into the query")
        return self

    def texts(self) -> Iterator[tuple[str, str]]:
        yield "url", self.url
        yield from super().texts()

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        """The arguments as a JSON Schema of an object. Raises ValueError."""
        return schema_of(self.parameters)


def schema_of(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a function as a JSON Schema of an object; `given` is one, or has a
    description or a schema for each parameter. Raises ValueError."""
    if given.get("type") == "object" and isinstance(given.get("properties", {}), dict):
        _check_schema({"properties": {}, **given}, "parameters")
        return {"properties": {}, **given}
    properties: dict[str, Any] = {}
    required = []
    for name, about in given.items():
        if isinstance(about, str):
            about = {"type": "string", "description": about}
        if not isinstance(about, dict) or about.get("type") not in _TYPES:
            types = ", ".join(_TYPES)
            raise ValueError(f"parameters: {name} is no description and has no type of {types}")
        if not about.get("optional", False):
            required.append(name)
        properties[name] = {key: of for key, of in about.items() if key != "optional"}
        _check_schema(properties[name], f"parameters.{name}")
    return {"type": "object", "properties": properties, "required": required}


def _check_schema(schema: Any, at: str) -> None:
    """Raises ValueError if servers of models would refuse a JSON Schema, and with it the request,
    because of its types, required names or alternatives."""
    if not isinstance(schema, dict):
        raise ValueError(f"{at}: is no table, as a JSON Schema is")
    kinds = schema.get("type", [])
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if kind not in _TYPES:
            raise ValueError(f"{at}.type: {kind!r} is none of {', '.join(_TYPES)}")
    for key in ("required", "enum"):
        if not isinstance(schema.get(key, []), list):
            raise ValueError(f"{at}.{key}: is no list")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise ValueError(f"{at}.properties: is no table with a schema for each name")
    if unknown := [one for one in schema.get("required", []) if one not in list(properties)]:
        raise ValueError(f"{at}.required: {unknown[0]!r} is none of its properties")
    for name, one in properties.items():
        _check_schema(one, f"{at}.properties.{name}")
    if "items" in schema:
        _check_schema(schema["items"], f"{at}.items")
