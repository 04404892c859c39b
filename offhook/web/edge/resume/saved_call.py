"""What is saved of a call, so that it continues at another server: JSON of 2 kB at most, and the
token with which its caller comes back."""

import hashlib
import json
import secrets
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from offhook.media.leg import CallInfo, Collected, ModelTokens
from offhook.pipeline.conversation.call.history import Message
from offhook.pipeline.conversation.call_info import as_dict

VERSION = 1
"""Another version's calls are not resumed: they begin anew."""
MAX_BYTES = 2048
"""Maximum size of a saved call: of a longer conversation only the newest messages are saved, and a
call whose other values leave no room for one is not saved at all."""
MIN_CONVERSATION_BYTES = 512
"""Of these, for the conversation: a call whose other values leave less is not saved."""
MAX_TOLD_BYTES = 400
"""Maximum size, as JSON, of what an agent has told the one that took the call over; of more only
the end is saved."""
MAX_COLLECTED_BYTES = 500
"""Maximum size, as JSON, of the details of the caller that are saved: of more, those noted last.
Where the other values leave less room, fewer are."""
MAX_READ_BYTES = 4 * MAX_BYTES
"""Maximum size of a saved call that is read, since JSON that others wrote may be escaped; a larger
one is not continued, and a warning is logged."""
TOKEN_BYTES = 24
SEPARATOR = "."
"""Between a call's id and its token in what a WebRTC client gets as its pc_id."""
WEBRTC = "webrtc"
"""Owner of the tokens of WebRTC callers."""

_ROLES: dict[str, Literal["user", "assistant"]] = {"u": "user", "a": "assistant"}


class TooLargeError(ValueError):
    """A call's variables and other values leave no space for its conversation."""


class _Stored(BaseModel):
    """The form in which a call is saved."""

    model_config = ConfigDict(extra="forbid", strict=True)

    v: Literal[1]
    agent: str
    info: dict[str, Any]
    seconds: int
    dialog: dict[str, Any]
    handoff: tuple[str, str, str] | None = None
    collected: Collected = {}
    tokens: tuple[int, int, int, float | None, tuple[str, ...]] | None = None
    place: str = ""
    said: list[tuple[Literal["u", "a"], str]]


class _Info(BaseModel):
    """The fields of `CallInfo`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    edge: str
    direction: Literal["inbound", "outbound"]
    caller: str
    caller_name: str
    called: str
    trunk: str
    headers: dict[str, str]
    variables: dict[str, Any]
    diverted_from: str = ""
    tenant: str = ""


class Handoff(NamedTuple):
    """Another agent has taken a call over."""

    agent: str
    """Its name; "agent" is `[agent]`."""
    before: str
    """Name of the agent before."""
    told: str
    """What that one has told it."""


@dataclass(frozen=True)
class SavedCall:
    """A call as another server continues it."""

    agent: str
    """Name of the agent that the call began with; "" for the default."""
    info: CallInfo
    seconds: int = 0
    """Duration of the call so far in s."""
    dialog: dict[str, Any] = field(default_factory=dict)
    """The agent's own state, see `call_io.Agent`."""
    messages: tuple[Message, ...] = ()
    """The conversation as it was heard, oldest first."""
    handoff: Handoff | None = None
    """The last one of the call; None: the agent is still the one that it began with."""
    collected: Collected = field(default_factory=dict)
    """Details that agents have noted of the caller."""
    tokens: ModelTokens = field(default_factory=ModelTokens)
    """What language models have taken that no record has told of."""
    place: str = ""
    """See `Leg.place`."""

    @property
    def answering(self) -> str:
        """Returns the name of the agent that the caller speaks with."""
        return self.agent if self.handoff is None else self.handoff.agent

    def pack(self) -> bytes:
        """Returns the call as JSON: of the conversation what fits, the newest. Raises TooLargeError
        and, for variables that are no JSON, TypeError or ValueError."""
        room = MAX_BYTES - len(self._packed(self.dialog, [], {}))
        dialog = self.dialog
        if room < MIN_CONVERSATION_BYTES:
            dialog, room = {}, MAX_BYTES - len(self._packed({}, [], {}))
        if room < MIN_CONVERSATION_BYTES:
            raise TooLargeError("the values of the call leave no space for its conversation")
        collected = _last_of(
            self.collected, min(MAX_COLLECTED_BYTES, room - MIN_CONVERSATION_BYTES)
        )
        room = MAX_BYTES - len(self._packed(dialog, [], collected))
        kept: list[tuple[str, str]] = []
        for role, text in reversed(self.messages):
            size = len(_json((role[0], text))) + 1
            if size > room and not kept:
                text = _end_of(text, room - len(_json((role[0], ""))) - 1)
                size = room
            if size > room:
                break
            kept.append((role[0], text))
            room -= size
        return self._packed(dialog, kept[::-1], collected)

    def _packed(
        self, dialog: dict[str, Any], said: list[tuple[str, str]], collected: Collected
    ) -> bytes:
        info = as_dict(self.info)
        if not self.info.diverted_from:
            del info["diverted_from"]  # servers of before know no such field
        if self.info.tenant:
            info["tenant"] = self.info.tenant
        fixed: dict[str, Any] = {"v": VERSION, "agent": self.agent, "info": info}
        fixed["seconds"] = self.seconds
        if self.handoff is not None:
            agent, before, told = self.handoff
            fixed["handoff"] = agent, before, _end_of(told, MAX_TOLD_BYTES)
        if collected:  # servers of before know neither of these
            fixed["collected"] = collected
        tokens = self.tokens
        if tokens.input or tokens.output:
            unpriced = sorted(tokens.unpriced)[:1]  # one is enough for the cost to be unknown
            fixed["tokens"] = tokens.input, tokens.cached, tokens.output, tokens.priced, unpriced
        if self.place:
            fixed["place"] = self.place
        return _json({**fixed, "dialog": dialog, "said": said})


def unpack(data: bytes) -> SavedCall:
    """Returns a saved call. Raises ValueError for anything else, another version's included."""
    if len(data) > MAX_READ_BYTES:
        raise ValueError(f"a saved call of {len(data)} bytes")
    try:
        stored = _Stored.model_validate_json(data)
        info = _Info.model_validate(stored.info)
    except RecursionError as error:
        raise ValueError("a saved call that is nested too deeply") from error
    messages = tuple((_ROLES[role], text) for role, text in stored.said)
    about = CallInfo(**dict(info))
    handoff = None if stored.handoff is None else Handoff(*stored.handoff)
    tokens = ModelTokens()
    if stored.tokens is not None:
        taken, cached, output, priced, unpriced = stored.tokens
        tokens = ModelTokens(taken, cached, output, priced, set(unpriced))
    said = stored.dialog, messages, handoff, stored.collected, tokens, stored.place
    return SavedCall(stored.agent, about, stored.seconds, *said)


def new_token() -> str:
    """Returns an unguessable token, usable in a URL's path."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def key_of(owner: str, token: str) -> str:
    """Returns the key of a call by its token. `owner` is what the token is bound to: WEBRTC, or a
    carrier's name and its id of the call."""
    # Hashed: who can list the keys has no tokens.
    text = f"{owner}\n{token}".encode(errors="surrogatepass")
    return hashlib.sha256(text).hexdigest()


def _last_of(collected: Collected, size: int) -> Collected:
    """Returns the details that were noted last, of `size` bytes at most as JSON."""
    kept: Collected = {}
    for name, value in reversed(collected.items()):
        size -= len(_json({name: value}))
        if size - len(',"collected":') < 0:
            break
        kept = {name: value, **kept}
    return kept


def _json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode()  # UnicodeEncodeError, a ValueError, for half a surrogate pair


def _end_of(text: str, size: int) -> str:
    """Returns the end of a text, of `size` bytes at most as JSON."""
    while len(_json(text)) - 2 > size:
        over = len(_json(text)) - 2 - size
        text = text[max(1, over // 6) :]
    return text
