"""`healthy URL`: exit 0 when GET URL is answered with 200, else say why not.

URL is http://HOST:PORT/PATH, or unix:SOCKET for /readyz behind a Unix socket. It imports little: it
runs every few seconds beside calls.
"""

import http.client
import socket
import sys
from urllib.parse import urlsplit

TIMEOUT_S = 2
UNIX = "unix:"


def status(url: str) -> int:
    """Of the answer. Raises OSError, http.client.HTTPException."""
    if url.startswith(UNIX):
        connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(TIMEOUT_S)
        connection.sock.connect(url.removeprefix(UNIX))
        path = "/readyz"
    else:
        address = urlsplit(url)
        connection = http.client.HTTPConnection(address.netloc, timeout=TIMEOUT_S)
        path = address.path
    connection.request("GET", path)
    return connection.getresponse().status


def main() -> None:
    url = sys.argv[1]
    try:
        answered = status(url)
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"{url}: {error}")
    if answered != 200:
        sys.exit(f"{url}: {answered}")


if __name__ == "__main__":
    main()
