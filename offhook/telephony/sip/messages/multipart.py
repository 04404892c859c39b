"""Finds a part of a multipart body (RFC 5621, RFC 2046 §5.1)."""

from offhook.telephony.sip.messages.grammar import SipError, find_parameter, parse_parameters
from offhook.telephony.sip.messages.headers import media_type, read_headers, unfold

MAX_PARTS = 16
"""Maximum parts of a body that are examined, the first ones; what is after them is not found."""
MULTIPART = ("multipart/mixed", "multipart/alternative")


def part_of(content_type: str, body: bytes, wanted: str) -> bytes | None:
    """Return the first part of the type `wanted`, or the whole body if that is its type, given the
    Content-Type with the boundary; None if there is none or the body is malformed."""
    kind = media_type(content_type)
    if kind == wanted:
        return body
    if kind not in MULTIPART:
        return None
    _, semicolon, rest = content_type.partition(";")
    try:
        boundary = find_parameter(parse_parameters(semicolon + rest), "boundary")
    except SipError:
        return None
    if not boundary:
        return None
    delimiter = b"\r\n--" + boundary.encode("utf-8", "surrogateescape")
    # The body may start with a boundary.
    for part in (b"\r\n" + body).split(delimiter, MAX_PARTS)[1:]:
        if part.startswith(b"--"):  # the last boundary
            return None
        head, _, content = part.partition(b"\r\n\r\n")
        headers, _ = read_headers(unfold(head)[1:])
        if media_type(headers.get("Content-Type") or "") == wanted:
            return content
    return None
