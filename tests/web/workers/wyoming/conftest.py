"""The servers of the speech API's tests."""

from tests.web.speech_api.conftest import quick_server, speech_server

__all__ = ["quick_server", "speech_server"]
