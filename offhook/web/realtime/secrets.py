"""Client secrets, `ek_…`: temporary keys that open Realtime sessions with one agent.

A client secret grants what a token of `POST /tokens` does, and a session object with it. It holds
both itself, encrypted and authenticated with a key of the server's (AES-GCM, NIST SP 800-38D).
Nothing is stored, so a secret is valid at every process with that key and after a restart. Whoever
has it reads in it nothing that the session would not show, such as the tokens of its MCP tools.

    ek_ base64url( nonce | ciphertext of zlib( JSON of session, agent, expires_at ) | tag )
"""

import base64
import binascii
import json
import re
import secrets
import zlib
from collections.abc import Collection, Mapping
from functools import lru_cache
from hashlib import scrypt
from typing import Annotated, Any, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from offhook.web.http.access import MAX_SESSIONS, SECRET_PREFIX, USUAL_SESSIONS, Scope, Token
from offhook.web.speech_api.errors import ApiError

PURPOSE = b"offhook: client secrets"
NONCE_BYTES = 12
KEY_BYTES = 32
SCRYPT_N = 1 << 13
"""Cost of deriving the key, about 20 ms and 8 MB: whoever has a secret could try API keys on it."""
MAX_SECRET_CHARS = 15 << 10
"""Maximum length of a secret, which is sent in a header; a session that would need a longer one is
refused with 400."""
DEFAULT_S, MIN_S, MAX_S = 600, 10, 7200
"""Lifetimes in s."""
OPENAI_MODEL = re.compile(r"gpt-(4o-|4o-mini-)?(realtime|audio|live|transcribe|mini-transcribe).*")
"""Names of OpenAI's models that clients send by default; they mean [agent]."""


class ClientSecrets:
    """Creates and reads the client secrets of the servers with one key. `now` is wall-clock time in
    s."""

    def __init__(self, key: str) -> None:
        derived = scrypt(key.encode(), salt=PURPOSE, n=SCRYPT_N, r=8, p=1, dklen=KEY_BYTES)
        self._cipher = AESGCM(derived)

    def create(
        self,
        session: Mapping[str, Any],
        agent: str,
        lifetime_s: int,
        now: float,
        max_sessions: int = USUAL_SESSIONS,
    ) -> tuple[str, int]:
        """Creates a secret for `agent`, "" being [agent], with which `max_sessions` may be open at
        a time. Returns it and when it expires. Raises ApiError 400 for a session object that is too
        large for it."""
        expires_at = int(now) + lifetime_s
        table = {"session": session, "agent": agent, "expires_at": expires_at}
        if max_sessions != USUAL_SESSIONS:
            table["max_sessions"] = max_sessions
        nonce = secrets.token_bytes(NONCE_BYTES)
        data = zlib.compress(json.dumps(table, separators=(",", ":")).encode(), 9)
        sealed = nonce + self._cipher.encrypt(nonce, data, PURPOSE)
        text = SECRET_PREFIX + base64.urlsafe_b64encode(sealed).decode().rstrip("=")
        if len(text) > MAX_SECRET_CHARS:
            words = (
                f"the session object makes a client secret of {len(text)} characters, and headers "
                f"take {MAX_SECRET_CHARS}: leave instructions to the agent's settings"
            )
            raise ApiError(400, words, "session", "invalid_value")
        return text, expires_at

    def find(self, text: str, now: float) -> Token | None:
        """Returns what a secret grants; None if it was not created with this key or has expired."""
        try:
            body = text.removeprefix(SECRET_PREFIX)
            sealed = base64.b64decode(body + "=" * (-len(body) % 4), b"-_", validate=True)
            data = self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], PURPOSE)
        except (binascii.Error, InvalidTag, ValueError):
            return None
        table = json.loads(zlib.decompress(data))
        if table["expires_at"] <= now:
            return None
        session = table["session"]
        scope: Scope = "speech" if session.get("type") == "transcription" else "call"
        sessions = table.get("max_sessions", USUAL_SESSIONS)
        nonce = sealed[:NONCE_BYTES].hex()
        return Token((scope,), table["agent"], table["expires_at"], session, nonce, sessions)


@lru_cache(4)
def secrets_with(key: str) -> ClientSecrets:
    """Returns the client secrets of a key; deriving it takes time."""
    return ClientSecrets(key)


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
    max_sessions: Annotated[int, Field(ge=1, le=MAX_SESSIONS)] = USUAL_SESSIONS
    """Ours: how many sessions may be open with the secret at a time."""


def parse_secret_request(body: bytes) -> SecretRequest:
    """Parses the body; an empty one is allowed. Raises ApiError 400."""
    try:
        return SecretRequest.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise bad_json(error) from error


def bad_json(error: ValidationError) -> ApiError:
    """Returns the error for an invalid body."""
    fault = error.errors()[0]
    param = ".".join(map(str, fault["loc"])) or None
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
