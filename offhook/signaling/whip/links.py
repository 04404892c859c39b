"""ICE servers as Link headers (RFC 9725 §4.6, RFC 8288)."""


def ice_server_link(url: str, username: str | None = None, credential: str | None = None) -> str:
    """Returns the value of the Link header of one STUN or TURN server."""
    link = f'<{url}>; rel="ice-server"'
    if username is not None and credential is not None:
        link += f"; username={_quoted(username)}; credential={_quoted(credential)}"
        link += '; credential-type="password"'
    return link


def _quoted(text: str) -> str:
    """Returns a quoted-string (RFC 9110 §5.6.4)."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
