"""A tool: what a language model cannot do by itself."""

from pydantic import Field

from offhook.web.config.section import Section
from offhook_morse.code import SIGNS


class Settings(Section):
    """`settings` of the tool."""

    dot: str = Field(".", min_length=1, max_length=3)
    dash: str = Field("-", min_length=1, max_length=3)


async def in_morse(text: str, settings: Settings) -> dict[str, str]:
    """Returns a text in Morse code, a space behind each letter and a slash between words.

    Args:
        text: letters and digits; others are left out
    """
    words = ([SIGNS[sign] for sign in word if sign in SIGNS] for word in text.lower().split())
    code = " / ".join(" ".join(letters) for letters in words)
    return {"code": code.replace(".", settings.dot).replace("-", settings.dash)}
