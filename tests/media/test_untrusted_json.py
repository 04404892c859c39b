"""JSON of others, however deep it is, and that nothing else reads it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.untrusted_json import read_json

PACKAGE = Path(__file__).parents[2] / "offhook"
OWN = (
    *("campaigns/plan.py", "config/reading/", "app/doctor/", "app/cli/commands/", "records/"),
    *("workers/local_worker_io.py", "workers/worker_child_io.py", "tools/knowledge/"),
    *("http/access.py", "realtime/secrets.py", "speech_api/sockets/speech_socket.py"),
    *("edge/calls_io.py", "edge/calls/store_queues/", "edge/builder/", "edge/rooms/"),
)
"""In `web`: what we have written ourselves, or signed, or what the operator has."""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=VALUES)
def test_what_json_can_say_is_read(value: object) -> None:
    assert read_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    "text", ["[" * 60_000, '{"a":' * 60_000, b"[" * 60_000, "", "nope", b"\xff"]
)
def test_anything_else_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply|Expecting|decode"):
        read_json(text)


def test_what_peers_send_is_read_by_nothing_else() -> None:
    found = set()
    for room in ("telephony", "signaling", "web", "pipeline/conversation", "pipeline/speech"):
        for path in (PACKAGE / room).rglob("*.py"):
            where = path.relative_to(PACKAGE).as_posix()
            if "json.loads(" in path.read_text() and not where.startswith(
                tuple(f"web/{one}" for one in OWN)
            ):
                found.add(where)
    assert found == set()
