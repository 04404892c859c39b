"""What the operator asks of the members of a call and of its agent."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from offhook.media.rooms.room import ROLES, Role
from offhook.web.config.agents import MAX_SPOKEN_CHARS
from offhook.web.edge.placing.requests import DialRequest, dial_fault

CALLER = "caller"
"""Name of the member whose call it is."""
AGENT = "agent"
"""Name of the call's agent among the members."""
MEMBER_NAME = r"^[\w.-]{1,64}$"
WHISPER = "whisper:"
ROLE_NAMES = '"speak", "listen" or "whisper:MEMBER"'

B = TypeVar("B", bound=BaseModel)


class RoomError(Exception):
    """Raised where a room cannot do what is asked, as things are; the message says why."""


class RoleError(ValueError):
    """Raised for a role that there is not."""


def role_of(text: str) -> tuple[Role, str]:
    """Return a role and the name of whom a whisper is for. Raises RoleError."""
    if text.startswith(WHISPER) and len(text) > len(WHISPER):
        return "whisper", text.removeprefix(WHISPER)
    for role in ROLES:
        if text == role != "whisper":
            return role, ""
    raise RoleError(f"must be {ROLE_NAMES}")


def role_name(role: Role, to: str) -> str:
    """Return a role as the operator writes it."""
    return f"{WHISPER}{to}" if role == "whisper" else role


def _checked(role: str) -> str:
    role_of(role)
    return role


RoleName = Annotated[str, AfterValidator(_checked)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class MemberRequest(_Body):
    """The body of `POST /calls/{call}/members`: who comes into the call, in one of three ways."""

    dial: DialRequest | None = None
    """Somebody who is called, as by `POST /calls`."""
    sdp: str = ""
    """A browser's offer, with all its candidates."""
    call: str = ""
    """Id of another call in progress, whose agent stands aside."""
    role: RoleName = "speak"
    """ "speak", "listen" or "whisper:MEMBER"."""
    name: str = Field("", pattern=MEMBER_NAME + "|^$")
    """The member's name in the room; by default the id of its call."""
    muted: bool = False

    @model_validator(mode="after")
    def _comes_in_one_way(self) -> Self:
        if sum(map(bool, (self.dial, self.sdp, self.call))) != 1:
            raise ValueError('needs one of "dial": {"to": "…"}, "sdp": "…" and "call": "…"')
        if self.name in (CALLER, AGENT):
            raise ValueError(f"name: {self.name!r} is taken")
        if self.dial is not None and (self.dial.agent or self.dial.machine_detection):
            raise ValueError("dial: a member has no agent, and no machine_detection")
        return self


class MemberChange(_Body):
    """The body of `PATCH /calls/{call}/members/{member}`: what is to change."""

    role: RoleName | None = None
    muted: bool | None = None
    on_hold: bool | None = None


class AgentRequest(_Body):
    """The body of `POST /calls/{call}/agent`."""

    say: str = Field("", max_length=MAX_SPOKEN_CHARS)
    """What the agent says as it stands."""
    message: str = Field("", max_length=MAX_SPOKEN_CHARS)
    """What its language model knows from now on; nobody hears it."""
    answers: bool = False
    """Whether the model speaks at once with that in mind."""
    action: Literal["leave", "return"] | None = None
    """People take the call over, or hand it back."""

    @model_validator(mode="after")
    def _asks_for_one_thing(self) -> Self:
        if sum(map(bool, (self.say, self.message, self.action))) != 1:
            raise ValueError('needs one of "say", "message" and "action": "leave" or "return"')
        if self.answers and not self.message:
            raise ValueError('answers: needs "message"')
        return self


def parsed(kind: Callable[..., B], body: bytes) -> B:
    """Parses a body. Raises DialRequestError, which names the field."""
    model: Any = kind
    try:
        read: B = model.model_validate_json(body)
    except ValidationError as error:
        raise dial_fault(error) from error
    return read
