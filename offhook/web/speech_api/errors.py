"""Errors of the speech API, in OpenAI's format."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Literal

from offhook.pipeline.speech.errors import EngineFault

Kind = Literal["invalid_request_error", "authentication_error", "rate_limit_error", "server_error"]


class ApiError(Exception):
    """Responds with `status`. The message says what to do; `param` names the invalid field."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type["ApiError"], tuple[Any, ...]]:
        return ApiError, (self.status, str(self), self.param, self.code, self.retry_after_s)

    @property
    def kind(self) -> Kind:
        if self.status == 401:
            return "authentication_error"
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def as_dict(self) -> dict[str, Any]:
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    def headers(self) -> dict[str, str]:
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}  # RFC 9110 §11.6.1
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


ENGINE_FAULTS: dict[EngineFault, tuple[int, str, str]] = {
    "failed": (503, "engine_error", "the speech engine failed: try again later"),
    "unloaded": (503, "engine_unavailable", "the speech engine could not be loaded"),
    "loading": (503, "engine_loading", "the speech engine is still loading: try again later"),
    "unreachable": (503, "engine_unreachable", "the speech engine could not be reached"),
    "timeout": (504, "engine_timeout", "the speech engine did not answer in time"),
    "refused": (502, "engine_refused", "the speech engine refused the request"),
    "full": (503, "engine_full", "the speech engine has too much to do: try again later"),
}
"""Status, code and message of each engine fault, all that a client is told: the error's own message
may contain addresses and another server's words, and goes to the log."""


def engine_fault(fault: EngineFault, request_id: str, retry_after_s: int) -> ApiError:
    """Returns the error with the request id under which the log has the reason."""
    status, code, sentence = ENGINE_FAULTS[fault]
    wait = retry_after_s if status == 503 else None
    return ApiError(status, f"{sentence} (request {request_id})", None, code, wait)


def size_in_words(size: int) -> str:
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size} bytes"


def too_large(most_bytes: int) -> ApiError:
    return ApiError(
        413, f"the body is larger than {size_in_words(most_bytes)}, the most taken here"
    )


MAX_SHOWN_CHARS = 80
"""Maximum characters of an invalid name quoted in a message; the rest is cut off."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a suggestion of the most similar known name; empty if there is none."""
    like = get_close_matches(name[:MAX_SHOWN_CHARS], list(known), 1)
    return f" (did you mean {like[0]}?)" if like else ""


def unknown_field(name: str, known: Sequence[str]) -> ApiError:
    """Returns the error for an unknown field; `known` lists the valid ones."""
    shown, like = ascii(name[:MAX_SHOWN_CHARS]), did_you_mean(name, known)
    words = f"there is no field {shown}{like}: the fields are {', '.join(known)}"
    return ApiError(400, words, name[:MAX_SHOWN_CHARS], "unknown_parameter")
