"""SIP, SIPS and tel URIs (RFC 3261 §19.1, RFC 3966)."""

import re
from dataclasses import dataclass, replace

from offhook.telephony.sip.messages.grammar import (
    Params,
    SipError,
    escape,
    find_parameter,
    format_host_port,
    parse_host_port,
    replace_parameter,
    unescape,
)

_FORBIDDEN = re.compile(r'[\x00-\x20\x7f<>"]')
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_VISUAL_SEPARATORS = str.maketrans("", "", "-.() ")
_DIALLED = re.compile(r"\+?[0-9A-Da-d*#]+")

# Characters allowed unescaped in each part, besides letters, digits and "-_.~" (RFC 3261 §25.1).
_MARK = "!*'()"
_USER = _MARK + "&=+$,;?/"
_PASSWORD = _MARK + "&=+$,"
_PARAMETER = _MARK + "[]/:&+$"
_HEADER = _MARK + "[]/?:+$"


@dataclass(frozen=True, slots=True)
class Uri:
    """A URI, as in a Request-URI or a header field."""

    scheme: str
    """"sip", "sips", "tel" or another, in lower case."""
    user: str | None = None
    """User part, unescaped."""
    host: str = ""
    """In lower case; an IPv6 address without brackets; "" for tel: and unknown schemes."""
    port: int | None = None
    parameters: Params = ()
    """URI parameters (not those of the header field), unescaped."""
    headers: tuple[tuple[str, str], ...] = ()
    """Header fields after "?", unescaped: those of a request made from the URI."""
    password: str | None = None
    opaque: str = ""
    """The number of a tel: URI; everything after an unknown scheme."""

    @classmethod
    def parse(cls, text: str) -> "Uri":
        """Parse a URI, without <>. Raises SipError."""
        scheme, colon, rest = text.partition(":")
        scheme = scheme.lower()
        if not colon or not _SCHEME.fullmatch(scheme):
            raise SipError(f"{text[:48]!r} is not a URI: it has no scheme")
        if _FORBIDDEN.search(rest):
            raise SipError("a URI contains a space, a quote or an angle bracket")
        if scheme in ("sip", "sips"):
            return cls._parse_sip(scheme, rest)
        parameters = ""
        if scheme == "tel":
            rest, _, parameters = rest.partition(";")
        if not rest:
            raise SipError(f"a {scheme[:24]}: URI is empty")
        return cls(scheme, parameters=_parse_parameters(parameters), opaque=rest)

    @classmethod
    def _parse_sip(cls, scheme: str, rest: str) -> "Uri":
        user = password = None
        # The user part may contain ";" and "?", so it is split off first.
        userinfo, at, after = rest.partition("@")
        if at:
            rest = after
            user, colon, secret = userinfo.partition(":")
            user = unescape(user)
            password = unescape(secret) if colon else None
        rest, question, header_text = rest.partition("?")
        place, semicolon, parameter_text = rest.partition(";")
        host, port = parse_host_port(place)
        parameters = _parse_parameters(parameter_text) if semicolon else ()
        headers = _parse_headers(header_text) if question else ()
        return cls(scheme, user, host, port, parameters, headers, password)

    def __str__(self) -> str:
        if self.scheme not in ("sip", "sips"):
            return f"{self.scheme}:{self.opaque}{_format_parameters(self.parameters)}"
        userinfo = ""
        if self.user is not None:
            userinfo = escape(self.user, _USER)
            if self.password is not None:
                userinfo += ":" + escape(self.password, _PASSWORD)
            userinfo += "@"
        text = f"{self.scheme}:{userinfo}{format_host_port(self.host, self.port)}"
        text += _format_parameters(self.parameters)
        if self.headers:
            text += "?" + "&".join(
                f"{escape(name, _HEADER)}={escape(value, _HEADER)}" for name, value in self.headers
            )
        return text

    def parameter(self, name: str) -> str | None:
        """Return a parameter's value (lower-case name); "" if it has no value, None if absent."""
        return find_parameter(self.parameters, name)

    def with_parameter(self, name: str, value: str | None) -> "Uri":
        """Return a copy with the parameter set; None for one without a value."""
        return replace(self, parameters=replace_parameter(self.parameters, name, value))

    def without_parameter(self, name: str) -> "Uri":
        kept = tuple((key, value) for key, value in self.parameters if key != name)
        return replace(self, parameters=kept)

    @property
    def number(self) -> str:
        """The telephone number without visual separators, or the user part if it is not one."""
        user = self.opaque if self.user is None else self.user.partition(";")[0]
        dialled = user.translate(_VISUAL_SEPARATORS)
        return dialled if _DIALLED.fullmatch(dialled) else user


def _parse_parameters(text: str) -> Params:
    parameters = []
    for piece in text.split(";"):
        name, equals, value = piece.partition("=")
        if name:
            parameters.append((unescape(name).lower(), unescape(value) if equals else None))
        elif equals:
            raise SipError("a parameter of a URI has no name")
    return tuple(parameters)


def _parse_headers(text: str) -> tuple[tuple[str, str], ...]:
    headers = []
    for piece in text.split("&"):
        name, equals, value = piece.partition("=")
        if not name or not equals:
            raise SipError("a header field of a URI has no name or no value")
        headers.append((unescape(name), unescape(value)))
    return tuple(headers)


def _format_parameters(parameters: Params) -> str:
    text = ""
    for name, value in parameters:
        text += ";" + escape(name, _PARAMETER)
        if value is not None:
            text += "=" + escape(value, _PARAMETER)
    return text
