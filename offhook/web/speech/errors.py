"""What a program is told when it cannot have what it asked for, in OpenAI's shape."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Literal

Kind = Literal["invalid_request_error", "authentication_error", "rate_limit_error", "server_error"]


class ApiError(Exception):
    """Answers the request with `status`. The message says what to do next; `param` names the field
    that was wrong."""

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


MAX_SHOWN_CHARS = 80
"""Of a name that was sent, in the words about it."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """To be said after a name that is not known: the one most like it, if any is."""
    like = get_close_matches(name[:MAX_SHOWN_CHARS], list(known), 1)
    return f" (did you mean {like[0]}?)" if like else ""


def unknown_field(name: str, known: Sequence[str]) -> ApiError:
    """A request has a field of this name, and there are only those."""
    shown, like = ascii(name[:MAX_SHOWN_CHARS]), did_you_mean(name, known)
    words = f"there is no field {shown}{like}: the fields are {', '.join(known)}"
    return ApiError(400, words, name[:MAX_SHOWN_CHARS], "unknown_parameter")
