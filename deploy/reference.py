"""The reference of the configuration, the command line, HTTP and all limits, from the code that
defines them.

`reference.py` writes the pages of docs/reference.
"""

import argparse
import ast
import dataclasses
import inspect
import json
import textwrap
import types
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from deploy.reference_limits import by_heading, is_limit
from offhook.telephony.carriers.providers import OURS, provider_called
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.web.app.cli.parser import parser
from offhook.web.config.config import Config
from offhook.web.speech_api.openapi import description

FOLDER = Path(__file__).parent.parent / "docs/reference"
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
WRITTEN = "<!-- written by deploy/reference.py (make reference) -->\n\n"
TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", Path: "path"}
REQUIRED = "required"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines) + "\n"


# --- configuration ---


def docstrings(cls: type) -> dict[str, str]:
    """The text under each field of a class, those of its bases included."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] != "offhook":
            continue
        [body] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(words))),
                ):
                    found[name] = words
    return found


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and (
        issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)
    )


def sections_in(kind: Any) -> list[type]:
    """The tables that a type consists of, however they are wrapped."""
    if is_section(kind):
        return [kind]
    return [section for part in get_args(kind) for section in sections_in(part)]


def type_name(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return type_name(parts[0])
    if origin is Literal:
        return ", ".join(f"`{json.dumps(part)}`" for part in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_name(p) for p in parts if p is not type(None)))
    if origin is tuple and parts[-1] is not Ellipsis:
        return " and ".join(type_name(part) for part in parts)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "table"
    if isinstance(origin, type) and issubclass(origin, (list, tuple, Set)):
        return "list"
    return TYPES.get(kind, "table" if is_section(kind) else "string")


def bounds(kind: Any, metadata: list[Any]) -> str:
    """Limits of a number, of a pydantic field or of an annotation."""
    more = list(get_args(kind)[1:]) if get_origin(kind) is Annotated else []
    limits = [
        f"{sign} {limit}"
        for part in (*metadata, *more)
        for name, sign in BOUNDS.items()
        if (limit := getattr(part, name, None)) is not None
    ]
    return ", ".join(limits)


def shown(default: Any) -> str:
    """A default as TOML has it."""
    if default is PydanticUndefined or default is dataclasses.MISSING:
        return REQUIRED
    if default is None:
        return ""
    if isinstance(default, (Set, tuple)):
        default = list(default)
    if isinstance(default, Path):
        default = str(default)
    return f"`{json.dumps(default, ensure_ascii=False)}`"


def fields_of(cls: type) -> Iterator[tuple[str, Any, Any, list[Any]]]:
    """Each field: its name, type, default and limits."""
    hints = get_type_hints(cls, include_extras=True)
    if issubclass(cls, BaseModel):
        for name, field in cls.model_fields.items():
            default = field.get_default(call_default_factory=True)
            yield name, hints[name], default, list(field.metadata)
        return
    for part in dataclasses.fields(cls):
        made = part.default_factory
        yield (
            part.name,
            hints[part.name],
            part.default if made is dataclasses.MISSING else made(),
            [],
        )


def section(cls: type, title: str) -> str:
    """A table of the configuration, and those within it."""
    words, inner, rows = docstrings(cls), [], []
    for name, kind, default, metadata in fields_of(cls):
        if inside := sections_in(kind):
            wrapped = get_origin(get_args(kind)[0] if get_origin(kind) is Annotated else kind)
            many = isinstance(wrapped, type) and issubclass(wrapped, (list, tuple))
            keyed = isinstance(wrapped, type) and issubclass(wrapped, Mapping)
            path = f"{title.strip('[]')}.{name}".lstrip(".") + (".NAME" if keyed else "")
            for one in inside:
                inner.append((one, f"[[{path}]]" if many else f"[{path}]", words.get(name, "")))
            continue
        limits = bounds(kind, metadata)
        kind_shown = type_name(kind) + (f", {limits}" if limits else "")
        rows.append((f"`{name}`", kind_shown, shown(default), cell(words.get(name, ""))))
    text = table(("key", "type", "default", ""), rows) if rows else ""
    if cls is CarrierSettings:
        text += providers()
    known: set[type] = set()
    for one, path, about in inner:
        if [p for _, p, _ in inner].count(path) > 1:  # one of several kinds
            about = inspect.getdoc(one) or about
        text += f"## `{path}`\n\n" + (f"{cell(about)}\n\n" if about else "")
        same = next((p for o, p, _ in inner if o is one and p != path), "")
        if one in known:
            text += f"The keys of `{same}`.\n\n"
            continue
        known.add(one)
        text += section(one, path)
    return text


def providers() -> str:
    """A table of what the secrets of carriers are at each provider."""
    keys = ("account", "secret", "api_key")
    rows = [
        (f"`{name}`", *(cell(provider_called(name).meanings.get(key, "–")) for key in keys))
        for name in OURS
    ]
    return table(("`provider`", *(f"`{key}`" for key in keys)), rows)


def configuration() -> str:
    text = "# Configuration\n\n" + WRITTEN
    text += (
        "`offhook.toml` in the working directory, or the file named by `--config`. Every key can "
        "also be set in the environment: `OFFHOOK_SERVER_PORT=8080` is `port` of `[server]`; lists "
        "and tables are written as JSON there. Unknown keys and invalid values stop the server, "
        "with a line for each. `offhook.example.toml` has the defaults to copy.\n\n"
    )
    body = section(Config, "")
    body = body[body.index("## ") :]
    return (text + body).rstrip() + "\n"


# --- command line ---


def argument(action: argparse.Action) -> tuple[str, str]:
    choices = f"{{{', '.join(map(str, action.choices))}}}" if action.choices else ""
    value = choices or (action.metavar if isinstance(action.metavar, str) else "")
    if not action.option_strings:
        return f"`{value or action.dest}`", cell((action.help or "") % vars(action))
    name = ", ".join(action.option_strings)
    if action.nargs != 0:
        name += f" {value or action.dest.upper()}"
    return f"`{cell(name)}`", cell((action.help or "") % vars(action))


def commands(of: argparse.ArgumentParser, about: str = "", level: int = 1) -> Iterator[str]:
    nested = [a for a in of._actions if isinstance(a, argparse._SubParsersAction)]
    given = [a for a in of._actions if a not in nested and a.dest not in ("help", "version")]
    if level > 1:
        yield f"{'#' * level} `{of.prog}`\n\n"
        if about:
            yield f"{cell(about[0].upper() + about[1:])}.\n\n"
        if given:
            yield table(("argument", ""), [argument(action) for action in given])
    for action in nested:
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, inner in action.choices.items():
            yield from commands(inner, helps.get(name, ""), min(level + 1, 3))


def command_line() -> str:
    text = "# Command line\n\n" + WRITTEN
    text += "All commands and their options. `offhook --version` prints the version.\n\n"
    return (text + "".join(commands(parser()))).rstrip() + "\n"


# --- HTTP ---


def schema_type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        parts = [schema_type(part) for part in schema["anyOf"] if part.get("type") != "null"]
        return " or ".join(dict.fromkeys(parts))
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("format") == "binary":
        return "file"
    if schema.get("type") == "array":
        return f"list of {schema_type(schema.get('items', {}))}"
    limits = [
        f"{sign} {schema[name]}"
        for name, sign in (
            ("minimum", "≥"),
            ("maximum", "≤"),
            ("exclusiveMinimum", ">"),
            ("exclusiveMaximum", "<"),
        )
        if name in schema
    ]
    if "maxLength" in schema:
        limits.append(f"at most {schema['maxLength']} characters")
    return ", ".join([str(schema.get("type", "any")), *limits])


def http() -> str:
    whole = description(asr=True, tts=True)

    def resolved(schema: Any) -> Any:
        if isinstance(schema, list):
            return [resolved(part) for part in schema]
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            found: Any = whole
            for part in schema["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            return resolved(found)
        return {name: resolved(part) for name, part in schema.items()}

    text = "# HTTP\n\n" + WRITTEN
    text += (
        "The speech API, as `/openapi.json` describes it; [speech API](../speech-api.md) has "
        "examples and the WebSockets. Calls: [`/calls`](../phones.md#place-a-call). `/whip` and "
        "`/whep`: [WHIP and WHEP](../whip.md). Who may use what: [access](../access.md).\n\n"
    )
    for path, methods in whole["paths"].items():
        for method, operation in methods.items():
            if method == "parameters":
                continue
            text += f"## `{method.upper()} {path}`\n\n{operation['summary']}.\n\n"
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                schema = resolved(content["schema"])
                needed = dict.fromkeys(schema.get("required", ()), REQUIRED)
                rows = [
                    (
                        f"`{name}`",
                        cell(schema_type(one)),
                        cell("; ".join(filter(None, (needed.get(name), one.get("description"))))),
                    )
                    for name, one in sorted(
                        schema["properties"].items(), key=lambda field: field[0] not in needed
                    )
                ]
                text += f"Request, `{kind}`:\n\n" + table(("field", "type", ""), rows)
            answers = operation["responses"]["200"].get("content", {})
            text += "Response: " + ", ".join(f"`{kind}`" for kind in answers) + "\n\n"
    statuses = {
        status: answer["description"]
        for methods in whole["paths"].values()
        for operation in methods.values()
        if isinstance(operation, dict)
        for status, answer in operation["responses"].items()
        if status != "200"
    }
    text += (
        "## Errors\n\nIn OpenAI's shape: `error` with `message`, `type`, `param` and `code`.\n\n"
    )
    rows = [(status, cell(words)) for status, words in sorted(statuses.items())]
    return (text + table(("status", "when"), rows)).rstrip() + "\n"


# --- limits ---


def limit_settings(cls: type, title: str = "") -> Iterator[tuple[str, ...]]:
    """Rows of the keys of the configuration that are limits: key, default and text."""
    words, known = docstrings(cls), set()
    for name, kind, default, metadata in fields_of(cls):
        path = f"{title}.{name}".lstrip(".")
        for one in sections_in(kind):
            if one not in known:
                yield from limit_settings(one, path)
            known.add(one)
        text = words.get(name, "")
        numeric = {int, float} & {get_origin(kind) or kind, *get_args(kind)}
        if not numeric or not is_limit(name, text):
            continue
        allowed = bounds(kind, metadata)
        value = shown(default) + (f" ({allowed})" if allowed else "")
        yield f"`[{title}] {name}`", value, cell(text)


def limits() -> str:
    text = "# Limits\n\n" + WRITTEN
    text += (
        "What the server bounds, so that nobody can make it grow or wait without end: sizes, "
        "numbers and times, with what happens when they are reached. Those that depend on the "
        "machine and its callers are settings; [configuration](configuration.md) has all keys. The "
        "rest are constants of the code, far from what callers, programs and carriers need, named "
        "here with their files.\n\n## Settings\n\n"
    )
    text += table(("key", "default", ""), list(dict.fromkeys(limit_settings(Config))))
    for heading, listed in by_heading().items():
        text += f"## {heading}\n\n"
        rows = [(f"`{one.name}`", one.value, cell(one.text), f"`{one.file}`") for one in listed]
        text += table(("limit", "value", "", "in"), rows)
    return text.rstrip() + "\n"


PAGES = {
    "configuration.md": configuration,
    "command-line.md": command_line,
    "http.md": http,
    "limits.md": limits,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
