"""What is masked in logs, and what only looks like a key."""

import pytest

from offhook.pipeline.speech.redact import MASK, redacted
from offhook.web.http.access import Token, issue_token

TOKEN = issue_token("the operator's key", Token(("call",), "desk", 1_800_000_000))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"token {TOKEN} has expired", f"token {MASK} has expired"),
        ("Authorization: Bearer abcd1234", f"Authorization: Bearer {MASK}"),
        ("sk-test-0123456789abcdef is unknown", f"{MASK} is unknown"),
        ("https://me:hunter2@voice.example/v1", f"https://{MASK}@voice.example/v1"),
        ("no such engine: offhook_morse.voice:Voice", "no such engine: offhook_morse.voice:Voice"),
        ("offhook_sip.calls", "offhook_sip.calls"),
    ],
)
def test_keys_are_masked_and_names_of_modules_are_not(text: str, shown: str) -> None:
    assert redacted(text) == shown
