"""Grammar shared by SIP's URIs and header fields (RFC 3261 §25.1).

All input is untrusted, so everything here runs in linear time: the regular expressions have one
quantifier, and that of a quoted string never backtracks.
"""

import re
from ipaddress import AddressValueError, IPv6Address
from urllib.parse import quote as percent_encode
from urllib.parse import unquote_to_bytes

Params = tuple[tuple[str, str | None], ...]
"""Parameters in order: lower-case names, unquoted values, None for one without a value."""

_TOKEN = re.compile(r"[A-Za-z0-9\-.!%*_+`'~]+")
_HOST = re.compile(r"[a-z0-9._-]+")
_BREAKS_VALUE = re.compile(r'[\x00-\x20\x7f"<>,]')
_NEEDS_QUOTES = re.compile(r'[^\x21-\x7e]|[",;<>\\]')
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*+"')
_LIST_MARK = re.compile(r'["<]|,[, \t]*')
_PARAMETER_MARK = re.compile(r'[";]')


class SipError(ValueError):
    """A peer's text, or a setting, violates SIP's grammar."""


def is_token(text: str) -> bool:
    """Return whether `text` is a token, as methods, header names and option tags are."""
    return _TOKEN.fullmatch(text) is not None


def parse_number(text: str, limit: int) -> int:
    """Parse decimal digits up to `limit`. Raises SipError."""
    digits = text.lstrip("0") or text[-1:]
    # int() never sees non-ASCII digits, or thousands of digits.
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20 or int(digits) > limit:
        raise SipError(f"{text[:24]!r} is not a number up to {limit}")
    return int(digits)


def end_of_quoted(text: str, start: int) -> int:
    """Return where the quoted string that opens at `start` ends. Raises SipError if it is not
    closed."""
    quoted = _QUOTED.match(text, start)
    if quoted is None:
        raise SipError("a quoted string is not closed")
    return quoted.end()


def unquote(text: str) -> str:
    """Return the content of a quoted string, given with its quotes."""
    inner = text[1:-1]
    if "\\" not in inner:
        return inner
    pieces = inner.split("\\\\")  # an escaped backslash escapes nothing after it
    return "\\".join(piece.replace("\\", "") for piece in pieces)


def quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def split_list(text: str, limit: int) -> list[str]:
    """Return the first `limit` values of a comma-separated list; commas in quoted strings and in <>
    are part of a value. Empty values are dropped. Text after an unclosed quote or < is one
    value."""
    if "," not in text:
        return [text] if text else []
    values: list[str] = []
    start = position = 0
    while len(values) < limit and (mark := _LIST_MARK.search(text, position)):
        position = mark.end()
        if mark[0] == "<":
            position = text.find(">", position) + 1 or len(text)
        elif mark[0] == '"':
            quoted = _QUOTED.match(text, mark.start())
            position = quoted.end() if quoted else len(text)
        else:
            _append(values, text[start : mark.start()])
            start = position
    if len(values) < limit:
        _append(values, text[start:])
    return values


def _append(values: list[str], text: str) -> None:
    if value := text.strip(" \t"):
        values.append(value)


def parse_parameters(text: str) -> Params:
    """Parse the parameters after a value: "" or text that starts with a semicolon. Raises
    SipError."""
    if not text:
        return ()
    pieces = text.split(";") if '"' not in text else _split_parameters(text)
    if pieces[0].strip(" \t"):
        raise SipError(f"{pieces[0][:24]!r} is between a value and its parameters")
    return tuple(_parse_parameter(piece) for piece in pieces[1:] if piece.strip(" \t"))


def _split_parameters(text: str) -> list[str]:
    pieces = []
    start = position = 0
    while mark := _PARAMETER_MARK.search(text, position):
        if mark[0] == ";":
            pieces.append(text[start : mark.start()])
            start = position = mark.end()
        else:
            position = end_of_quoted(text, mark.start())
    return [*pieces, text[start:]]


def _parse_parameter(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    name = name.strip(" \t")
    if not is_token(name):
        raise SipError(f"{name[:24]!r} is not the name of a parameter")
    if not equals:
        return name.lower(), None
    value = value.strip(" \t")
    if value.startswith('"'):
        if end_of_quoted(value, 0) != len(value):
            raise SipError(f"text follows the quoted value of the parameter {name[:24]}")
        return name.lower(), unquote(value)
    if _BREAKS_VALUE.search(value):
        raise SipError(f"{value[:24]!r} is not the value of a parameter")
    return name.lower(), value


def format_parameters(parameters: Params) -> str:
    """Format parameters, each with a leading semicolon; values are quoted if necessary."""
    text = ""
    for name, value in parameters:
        if value is None:
            text += f";{name}"
        elif not value or _NEEDS_QUOTES.search(value):
            text += f";{name}={quote(value)}"
        else:
            text += f";{name}={value}"
    return text


def find_parameter(parameters: Params, name: str) -> str | None:
    """Return the first parameter of this (lower-case) name; "" if it has no value, None if
    absent."""
    for key, value in parameters:
        if key == name:
            return "" if value is None else value
    return None


def replace_parameter(parameters: Params, name: str, value: str | None) -> Params:
    """Return the parameters with one set, in its place if present, otherwise at the end."""
    if all(key != name for key, _ in parameters):
        return (*parameters, (name, value))
    return tuple((key, value if key == name else old) for key, old in parameters)


def with_raw_parameter(text: str, name: str, value: str) -> str:
    """Set one (lower-case) parameter in the text of a valid value and leave everything else as it
    is: quotes, spaces and the case of names too."""
    first, *rest = _split_parameters(text)
    named = [piece.partition("=")[0].strip(" \t").lower() == name for piece in rest]
    pieces = [f"{name}={value}" if n else p for p, n in zip(rest, named, strict=True)]
    if not any(named):
        pieces.append(f"{name}={value}")
    return ";".join((first, *pieces))


def unescape(text: str) -> str:
    """Decode %xx as UTF-8. Bytes that are not UTF-8 are preserved (surrogateescape), and an invalid
    % is left unchanged."""
    if "%" not in text and text.isascii():
        return text
    # On bytes, since raw and escaped bytes may form one character together.
    sent = text.encode("utf-8", "surrogateescape")
    return unquote_to_bytes(sent).decode("utf-8", "surrogateescape")


def escape(text: str, allowed: str) -> str:
    """Escape as %xx everything but letters, digits, "-_.~" and the characters allowed."""
    return percent_encode(text, safe=allowed, errors="surrogateescape")


def parse_host_port(text: str) -> tuple[str, int | None]:
    """Return the host in lower case, an IPv6 address without brackets, and the port. Raises
    SipError. Underscores are accepted in host names, as they occur in practice."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        between, colon, port = rest.partition(":")
        if not bracket or between.strip(" \t") or not _is_ipv6(host):
            raise SipError(f"{text[:48]!r} is not an IPv6 address in brackets")
    else:
        host, colon, port = text.partition(":")
        host = host.rstrip(" \t")
    host = host.lower()
    if not text.startswith("[") and not _HOST.fullmatch(host):
        raise SipError(f"{host[:48]!r} is not a host")
    return host, parse_port(port) if colon else None


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except AddressValueError:
        return False
    return "%" not in host  # a zone has a meaning only at its sender


def parse_port(text: str) -> int:
    """Parse a port, 1..65535. Raises SipError."""
    port = parse_number(text.strip(" \t"), 65_535)
    if port == 0:
        raise SipError("port 0 is not valid")
    return port


def format_host_port(host: str, port: int | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"
