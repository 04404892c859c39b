"""The configuration of calls with several members: `[rooms]`."""

from typing import Literal

from pydantic import Field

from offhook.web.config.section import Section

MAX_NOTICE_CHARS = 500
"""Maximum characters of a notice; a longer one is refused at the start."""
BEEP = "beep"


class Rooms(Section):
    announce: Literal["beep", "none"] = "beep"
    """What all members hear when one who speaks joins or leaves."""
    listen_notice: str = Field(
        "", max_length=MAX_NOTICE_CHARS, examples=["A colleague is listening."]
    )
    """What the caller hears when somebody begins to listen or to whisper: "beep", or a sentence
    that the agent says. Empty: nothing, where the law allows that."""
