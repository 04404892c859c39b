"""Client secrets, `ek_…`: temporary keys that open Realtime sessions with one agent.

A client secret grants what a token of `POST /tokens` does, and a session object with it. A token
carries its claims, readable by whoever holds it, in a header of limited size; a session object has
the agent's instructions and may be large. So it stays here, under a hash of the secret.
"""

import hmac
import json
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from heapq import heappop, heappush
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from offhook.web.http.access import SECRET_PREFIX, Scope, Token
from offhook.web.speech_api.errors import ApiError

MAX_SECRETS = 10_000
"""Maximum client secrets that are valid at a time."""
MAX_SESSIONS_BYTES = 32 << 20
"""Maximum size of all their session objects as JSON."""
SECRET_BYTES = 32
DEFAULT_S, MIN_S, MAX_S = 600, 10, 7200
"""Lifetimes in s."""
OPENAI_MODEL = re.compile(r"gpt-(4o-|4o-mini-)?(realtime|audio|live|transcribe|mini-transcribe).*")
"""Names of OpenAI's models that clients send by default; they mean [agent]."""


class SecretsFull(Exception):
    """Raised when no more secrets are accepted for `retry_after_s`."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__("too many client secrets are valid")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class _Stored:
    token: Token
    digest: bytes
    size: int
    """Of the session object as JSON."""


class ClientSecrets:
    """The client secrets of a server. `now` is wall-clock time in s."""

    def __init__(self, max_secrets: int = MAX_SECRETS, max_bytes: int = MAX_SESSIONS_BYTES) -> None:
        self._max_secrets, self._max_bytes = max_secrets, max_bytes
        self._stored: dict[bytes, _Stored] = {}
        """By the SHA-256 of the secret. That suffices: a secret is random, not a password."""
        self._expiries: list[tuple[int, bytes]] = []
        """A heap."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def create(
        self, session: Mapping[str, Any], agent: str, lifetime_s: int, now: float
    ) -> tuple[str, Token]:
        """Creates a secret for `agent`, "" being [agent]. When there are too many, none is created
        rather than another made invalid. Raises SecretsFull."""
        scope: Scope = "speech" if session.get("type") == "transcription" else "call"
        text = SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        token = Token((scope,), agent, int(now) + lifetime_s, session)
        self._store(_digest(text), token, now)
        return text, token

    def _store(self, digest: bytes, token: Token, now: float) -> None:
        self.drop_expired(now)
        size = len(json.dumps(token.session))
        if len(self._stored) >= self._max_secrets or self._bytes + size > self._max_bytes:
            first = self._expiries[0][0] if self._expiries else now + MIN_S
            raise SecretsFull(max(1, round(first - now)))
        self._stored[digest] = _Stored(token, digest, size)
        self._bytes += size
        heappush(self._expiries, (token.expires_at, digest))

    def shared(self, text: str, now: float) -> bytes:
        """Returns a valid secret for `add_shared` of another process; it has the hash only."""
        token = self.find(text, now)
        return json.dumps(
            {"digest": _digest(text).hex(), "token": token and asdict(token)}
        ).encode()

    def add_shared(self, shared: bytes, now: float) -> None:
        """Stores a secret of another process. Raises SecretsFull."""
        table = json.loads(shared)
        if table["token"] is not None:
            token = Token(**{**table["token"], "scopes": tuple(table["token"]["scopes"])})
            self._store(bytes.fromhex(table["digest"]), token, now)

    def find(self, text: str, now: float) -> Token | None:
        """Returns what a secret grants; None if it is unknown or has expired."""
        self.drop_expired(now)
        digest = _digest(text)
        stored = self._stored.get(digest)
        same = stored is not None and hmac.compare_digest(stored.digest, digest)
        return stored.token if stored is not None and same else None

    def drop_expired(self, now: float) -> None:
        while self._expiries and self._expiries[0][0] <= now:
            stored = self._stored.pop(heappop(self._expiries)[1])
            self._bytes -= stored.size


def _digest(text: str) -> bytes:
    return sha256(text.encode(errors="surrogateescape")).digest()


# --- POST /v1/realtime/client_secrets ---


class ExpiresAfter(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Field(ge=MIN_S, le=MAX_S)] = DEFAULT_S


class SecretRequest(BaseModel):
    """The body of `POST /v1/realtime/client_secrets`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    expires_after: ExpiresAfter = ExpiresAfter()
    session: dict[str, Any] = {}


def parse_secret_request(body: bytes) -> SecretRequest:
    """Parses the body; an empty one is allowed. Raises ApiError 400."""
    try:
        return SecretRequest.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise bad_json(error) from error


def bad_json(error: ValidationError, prefix: str = "") -> ApiError:
    """Returns the error for an invalid body, whose fields are named with `prefix`."""
    fault = error.errors()[0]
    param = prefix + ".".join(map(str, fault["loc"])) or None
    code = {
        "missing": "missing_required_parameter",
        "extra_forbidden": "unknown_parameter",
    }.get(fault["type"], "invalid_value")
    return ApiError(400, f"{param or 'body'}: {fault['msg']}", param, code)


def agent_of_model(model: str | None, agents: Collection[str]) -> str:
    """Returns the name of the agent that a session's `model` means: that of [agents.NAME], or ""
    for [agent] if none is given or it is one of OpenAI's. Raises ApiError 404 for another."""
    usual = not model or model == "default" or OPENAI_MODEL.fullmatch(model)
    if not model or (usual and model not in agents):
        return ""
    if model in agents:
        return model
    there = ", ".join(agents) or "none"
    words = f"no agent is called {model[:80]!r} (there: {there}; OpenAI's names mean [agent])"
    raise ApiError(404, words, "session.model", "model_not_found")
