"""The limits of the server, read from its source without importing it.

A module's constant, a number, is a limit if its name says so (MAX, MOST, LIMIT, TIMEOUT, SHARE), or
the text beneath it: "limit", "maximum", "at most", "further ones are dropped", and of a time or a
size also "after which", "beyond which", "within which". The files in `ELSEWHERE` have none: what
they compute stays the same whoever calls.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "offhook"
NAME = re.compile(r"(?:^|_)(?:MAX|MOST|LIMITS?|TIMEOUTS?|SHARE)(?:_|$)")
TEXT = re.compile(
    r"\b(?:limits?|maximum|at most)\b"
    r"|\b(?:further|more|oldest|older|others?)\b[^.;]* (?:is|are) "
    r"(?:dropped|refused|forgotten|closed|ignored|rejected)",
    re.IGNORECASE,
)
AMOUNT = re.compile(r"_(?:S|SECONDS|MINUTES|MS|BYTES|CHARS|CHARACTERS)$")
WHICH = re.compile(r"\b(?:after|beyond|within) which\b")
ROOMS: Mapping[str, str] = {
    "web/http": "HTTP connections",
    "web/speech_api": "Speech API",
    "web/realtime": "OpenAI Realtime",
    "web/tools": "Tools of agents",
    "web/workers/wyoming": "Home Assistant",
    "web/records": "Calls that are kept",
    "web/tools/analysis": "Calls that are kept",
    "web/config/language_models": "Calls that are kept",
    "web/edge": "Calls",
    "web/campaigns": "Campaigns",
    "web/records/campaigns": "Campaigns",
    "web/edge/campaigns": "Campaigns",
    "web/edge/resume": "Calls that continue elsewhere",
    "web/app": "Calls",
    "processes": "Processes",
    "web/config": "Processes",
    "web/workers": "Workers",
    "pipeline/engines": "Engines of workers",
    "pipeline/engines/embedded": "Recognition and speech of a call",
    "pipeline/engines/hub": "Downloads of models",
    "signaling": "WebRTC",
    "signaling/whip": "WHIP and WHEP",
    "telephony": "SIP",
    "telephony/carriers": "Carriers",
    "pipeline/conversation": "Conversations",
    "pipeline/speech": "Recognition and speech of a call",
    "pipeline/speech/remote": "Engines elsewhere",
    "pipeline/speech/openai": "Engines elsewhere",
    "media": "Audio",
}
"""Headings of the page, in its order, by the folder with the modules; the longest applies."""
ELSEWHERE: Mapping[str, str] = {
    "web/app/cli": "the command line",
    "web/app/doctor": "the command line",
    "pipeline/engines/shared/synthesis/messages.py": "batches of a model",
    "pipeline/engines/shared/model": "models",
    "pipeline/engines/shared/qwen3": "models",
    "pipeline/engines/qwen3_asr": "batches of a model",
    "pipeline/engines/nemotron": "batches of a model",
    "pipeline/engines/pocket": "batches of a model",
    "pipeline/engines/sherpa": "batches of a model",
    "pipeline/engines/sherpa/recognizer_io.py": "",
    "pipeline/engines/qwen3_tts": "batches of a model",
    "pipeline/engines/qwen3_tts/voices.py": "",
    "pipeline/engines/qwen3_tts/voices_io.py": "",
    "pipeline/engines/qwen3_tts/recordings_io.py": "",
    "pipeline/speech/enhancement": "signal processing",
    "pipeline/speech/text": "spelling of numbers and words",
    "pipeline/speech/vad": "signal processing",
    "pipeline/speech/vad/smart_turn_io.py": "",
    "pipeline/speech/vad/turn_model_io.py": "",
    "pipeline/speech/vad/vad_io.py": "",
    "pipeline/speech/voice": "signal processing",
    "pipeline/speech/voice/audio_cache_io.py": "",
    "pipeline/speech/streams/rolling_text.py": "signal processing",
    "pipeline/speech/streams/speech_clock.py": "signal processing",
    "pipeline/speech/streams/transcript.py": "tokens of a model",
    "web/speech_api/http/transcript.py": "lines of captions",
    "web/http/loop_io.py": "garbage collection",
    "pipeline/engines/shared/progress.py": "the progress of loading",
    "pipeline/conversation/turns/echo.py": "signal processing",
    "media/codecs": "signal processing",
    "media/rtp/stretch.py": "signal processing",
    "media/rtp/quality.py": "signal processing",
}
"""Folders and files whose constants are no limits, with what they are about; empty: they are."""
UNITS = {
    "S": "s",
    "MS": "ms",
    "BYTES": "bytes",
    "CHARS": "characters",
    "CHARACTERS": "characters",
    "SAMPLES": "samples",
    "WORDS": "words",
    "LINES": "lines",
    "PACKETS": "packets",
    "TICKS": "ticks of 20 ms",
}
"""By the last word of a constant's name; those without one count what the name says."""
OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: lambda a, b: int(a) << int(b),
}
FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "int": int,
    "float": float,
    "round": round,
}


@dataclass(frozen=True)
class Limit:
    file: str
    """As in `offhook`."""
    name: str
    value: str
    """As a reader sees it, with its unit."""
    text: str
    """What it is, and what happens when it is reached."""


def is_limit(name: str, text: str) -> bool:
    """Also of a key of the configuration."""
    name = name.upper()
    amount = AMOUNT.search(name) and WHICH.search(text)
    return bool(NAME.search(name) or TEXT.search(text) or amount)


def longest(places: Mapping[str, str], file: str) -> str | None:
    """Returns the value of the most special folder, or file, that a file is in."""
    parts = file.split("/")
    paths = ("/".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((places[path] for path in paths if path in places), None)


# --- source ---


@cache
def module(name: str) -> ast.Module | None:
    """The source of offhook.x.y; None if it is a folder, or another package's."""
    path = PACKAGE.parent / Path(*name.split(".")).with_suffix(".py")
    return ast.parse(path.read_text()) if path.is_file() else None


@cache
def constants(name: str) -> dict[str, tuple[ast.expr, str]]:
    """Of a module: the expression of each, and the text beneath."""
    tree = module(name)
    body = tree.body if tree is not None else []
    found: dict[str, tuple[ast.expr, str]] = {}
    untold: list[tuple[str, ast.expr]] = []
    line = 0
    for node, after in zip_longest(body, body[1:]):
        match node:
            case ast.Assign(targets=[ast.Name(id=constant)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=constant), value=ast.expr() as value):
                pass
            case _:
                continue
        if node.lineno != line + 1:
            untold.clear()
        line = node.end_lineno or node.lineno
        untold.append((constant, value))
        match after:
            case ast.Expr(value=ast.Constant(value=str(text))):
                # It is about all of those right above it that have none of their own.
                found.update({name: (it, " ".join(text.split())) for name, it in untold})
                untold.clear()
            case _:
                found[constant] = value, ""
    return {name: found[name] for name in found if name.isupper()}


@cache
def imports(name: str) -> dict[str, tuple[str, str]]:
    """Of a module: module and name of what each of its names was imported as."""
    tree = module(name)
    nodes = tree.body if tree is not None else []
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def number(node: ast.expr, within: str) -> float:
    """The value of an expression in a module. Raises ValueError if it is not plain arithmetic of
    constants."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -number(operand, within)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](number(left, within), number(right, within))
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in FUNCTIONS:
            return FUNCTIONS[name](*(number(argument, within) for argument in arguments))
        case ast.Name(id=name):
            if name in constants(within):
                return number(constants(within)[name][0], within)
            if name in imports(within):
                other, named = imports(within)[name]
                if named in constants(other):
                    return number(constants(other)[named][0], other)
        case ast.Attribute(value=ast.Name(id=alias), attr=name) if alias in imports(within):
            other = ".".join(imports(within)[alias])
            if name in constants(other):
                return number(constants(other)[name][0], other)
    raise ValueError(ast.unparse(node))


# --- as readers see it ---


def amount(value: float, unit: str) -> str:
    """A number and its unit: "64 KiB", "15 s", "1,000"."""
    if unit == "bytes" and value >= 1024:
        for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value >= size and value * 2 % size == 0:
                return f"{value / size:g} {name}"
    shown = f"{int(value):,}" if value == int(value) else f"{value:g}"
    return f"{shown} {unit}".strip()


def value_of(name: str, node: ast.expr, within: str) -> str | None:
    """The value of a constant with its unit; None if it is not made of numbers."""
    unit = "/s" if name.endswith("_PER_S") else UNITS.get(name.rpartition("_")[2], "")
    match node:
        case ast.Tuple(elts=parts):
            pass
        case ast.Call(keywords=[ast.keyword(arg="total", value=seconds)]):  # aiohttp's timeouts
            parts, unit = [seconds], "s"
        case _:
            parts = [node]
    try:
        return " to ".join(amount(number(part, within), unit) for part in parts)
    except ValueError:
        return None


def limits() -> Iterator[tuple[str, Limit]]:
    """All of them, each with the heading that it stands under, in the order of the files."""
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if longest(ELSEWHERE, file):
            continue
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for constant, (node, text) in constants(name).items():
            if constant.startswith("_") or not is_limit(constant, text):
                continue
            value = value_of(constant, node, name)
            if value is None:
                continue
            heading = longest(ROOMS, file)
            assert heading is not None, f"{file} has limits and no heading in ROOMS"
            yield heading, Limit(file, constant, value, text)


def by_heading() -> dict[str, Sequence[Limit]]:
    """In the order of the page."""
    found: dict[str, list[Limit]] = {heading: [] for heading in ROOMS.values()}
    for heading, limit in limits():
        found[heading].append(limit)
    return {heading: listed for heading, listed in found.items() if listed}
