"""HTTP message signatures as Genesys makes them: the draft that became RFC 9421, HMAC only.

Signature-Input lists which parts of the request were signed, and Signature gives the result. Both
are structured fields (RFC 8941), of which only what signatures need is parsed: dictionaries of
inner lists of strings, and of byte sequences.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

MAX_SIGNATURES = 4
"""Maximum signatures of one request, as a proxy may add one of its own; a request with more is
refused with 403."""

_KEY = r"[a-z*][a-z0-9_\-.*]*"
_STRING = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
_PARAMETER = re.compile(rf"; *({_KEY})=({_STRING}|-?[0-9]{{1,15}})")
_COMPONENT = re.compile(_STRING)
_COMPONENTS = rf"\(((?: *{_STRING})* *)\)"
_INPUT = re.compile(rf"({_KEY})={_COMPONENTS}((?:; *{_KEY}=(?:{_STRING}|-?[0-9]{{1,15}}))*)")
_SIGNATURE = re.compile(rf"({_KEY})=:([A-Za-z0-9+/]*=*):")
_COMMA = re.compile(r"[ \t]*,[ \t]*")


@dataclass(frozen=True, slots=True)
class HttpSignature:
    """One signature of a request, not yet verified."""

    components: tuple[str, ...]
    """Names of the covered components, in order: "@authority", "x-api-key"."""
    parameters: Mapping[str, str | int]
    signature: bytes = field(repr=False)
    signature_params: str = field(repr=False)
    """Components and parameters as the signer wrote them: the last line of the signature base."""

    def verify(self, secret: bytes, values: Mapping[str, str]) -> bool:
        """Return whether `secret` signed these component values (RFC 9421 §2.5, §3.3.3). Raises
        KeyError if a component has no value."""
        lines = [f'"{name}": {values[name]}' for name in self.components]
        lines.append(f'"@signature-params": {self.signature_params}')
        text = "\n".join(lines).encode(errors="surrogatepass")
        return hmac.compare_digest(hmac.digest(secret, text, hashlib.sha256), self.signature)


def parse_signatures(signature_input: str, signature: str) -> list[HttpSignature]:
    """Parse both headers into signatures. Raises ValueError if they do not follow RFC 9421 §4, or
    use what is not supported: flags, components with parameters."""
    signatures = {m[1]: m[2] for m in _members(_SIGNATURE, signature.strip())}
    found = []
    for member in _members(_INPUT, signature_input.strip()):
        if member[1] not in signatures:
            raise ValueError(f"no signature is labelled {member[1]}")
        try:
            made = base64.b64decode(signatures[member[1]], validate=True)
        except binascii.Error:
            raise ValueError("the signature is not base64") from None
        components = tuple(_COMPONENT.findall(member[2]))
        parameters = _PARAMETER.findall(member[3])
        names = [name for name, _ in parameters]
        if len(set(components)) < len(components) or len(set(names)) < len(names):
            raise ValueError("a component or parameter is repeated")
        signature_params = f"({' '.join(components)})" + "".join(f";{n}={v}" for n, v in parameters)
        found.append(
            HttpSignature(
                tuple(_text(c) for c in components),
                {n: _text(v) if v.startswith('"') else int(v) for n, v in parameters},
                made,
                signature_params,
            )
        )
    return found


def _members(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    at, count = 0, 0
    while True:
        member = pattern.match(text, at)
        if member is None or count == MAX_SIGNATURES:
            raise ValueError("malformed signature headers")
        yield member
        at, count = member.end(), count + 1
        if at == len(text):
            return
        comma = _COMMA.match(text, at)
        if comma is None:
            raise ValueError("malformed signature headers")
        at = comma.end()


def _text(string: str) -> str:
    return re.sub(r"\\(.)", r"\1", string[1:-1])
