"""Links and email addresses as spoken on the telephone: "bob dot w at example dot com"."""

import re
from collections.abc import Callable, Mapping

from offhook.pipeline.speech.text.word_lists import words

_TOP = (
    "com|org|net|info|edu|gov|mil|int|io|ai|app|dev|co|me|tv|eu|uk|us|ca|au|de|at|ch|fr|es|pt|br|it|"
    "ru|jp|cn|kr|in|nl|be|pl|se|shop|store|online|site|blog|cloud|tech|biz|health|email|top|xyz"
)
_HOST = rf"(?:[A-Za-z0-9](?:[\w-]*[A-Za-z0-9])?\.)+(?:{_TOP})"
_MAIL = re.compile(r"(?:mailto:)?(?P<user>[\w.+%-]+)@(?P<host>(?:[\w-]+\.)+[A-Za-z]{2,})")
_LINK = re.compile(
    rf"(?:(?:https?|ftp|wss?)://(?P<any>[^\s/?#:]+)|(?P<host>(?:www\.[\w.-]+\.[a-z]+)|{_HOST}))"
    r"(?P<port>:\d+)?(?P<path>/[^?#]*)?(?P<query>[?#].*)?"
)
_SAID_AS_WORDS = words("com org net info gov mil shop store online site blog cloud tech")


def spoken_address(core: str, signs: Mapping[str, str], number: Callable[[str], str]) -> str | None:
    """Returns a link or email address in words; None if `core` is neither.

    `signs` names ".", "/", "-", "_", "+", "@" and ":"; `number` spells digits. The prefix before
    the host (https, www) and the query are omitted, since nobody writes them down.
    """

    def say(text: str) -> str:
        text = re.sub(r"\d+", lambda digits: f" {number(digits[0])} ", text)
        text = re.sub(r"[./\-_+@:]", lambda sign: f" {signs[sign[0]]} ", text)
        return " ".join(re.sub(r"[^\w']", " ", text).split())

    def say_host(host: str) -> str:
        *names, top = filter(None, host.removeprefix("www.").split("."))
        named = [spoken for name in names if (spoken := say(name))]
        ending = top if top in _SAID_AS_WORDS or len(top) > 3 else " ".join(top.upper())
        return f" {signs['.']} ".join([*named, ending])

    if match := _MAIL.fullmatch(core):
        return f"{say(match['user'])} {signs['@']} {say_host(match['host'])}"
    match = _LINK.fullmatch(core)
    if not match:
        return None
    host = match["any"] or match["host"]
    if not host.strip("."):
        return None
    spoken = say_host(host) if re.search("[A-Za-z]", host) else say(host)
    rest = (say(match["port"] or ""), say((match["path"] or "").rstrip("/")))
    return " ".join(part for part in (spoken, *rest) if part)
