"""What recognizers and synthesizers raise."""

from typing import Literal

EngineFault = Literal["failed", "unloaded", "loading", "unreachable", "timeout", "refused", "full"]
"""Why an engine fails, as reported to clients; see `web.speech_api.errors`."""


class EngineError(RuntimeError):
    """Raised when an engine cannot run. The message tells the operator why and what to do; it may
    contain addresses and quote another server. Clients are only told `fault`."""

    def __init__(self, message: str = "", fault: EngineFault = "failed") -> None:
        super().__init__(message)
        self.fault = fault


class UnsupportedRequest(EngineError, ValueError):
    """Raised when the engine does not support the request, e.g. an unknown language. The message is
    safe for clients."""


class EngineFailed(EngineError):
    """Raised when a running engine has failed for good; only a new process helps."""


class EngineOverloaded(EngineError):
    """Raised when the engine has its maximum number of streams; another may be opened when one
    ends."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message, "full")


class AudioOverrun(ValueError):
    """Raised when more audio is fed to an engine's stream than it buffers."""
