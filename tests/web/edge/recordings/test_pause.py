"""Card numbers: what is said while a recording is paused is in no byte that is kept."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from offhook.media.end_reason import End
from offhook.web.config.config import load
from offhook.web.config.server import Recording
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http import logs
from offhook.web.http.listening_io import Runner
from offhook.web.http.logs_io import set_up
from offhook.web.records.entries import NOT_KEPT
from tests.media.test_recording import decode
from tests.pipeline.conversation.phone import calls, model, says
from tests.support.waiting import until
from tests.web.edge.agents.test_agent import called, said_by_flite
from tests.web.edge.test_history import asked, bytes_of, keeping, records, written

pytestmark = pytest.mark.asyncio(loop_scope="module")

CARD = "4111 1111 1111 1111"
EVENTS = ["call.started", "call.ended"]
HOOK = {"url": "http://127.0.0.1:1/hook", "secrets": ["a secret of some length"], "events": EVENTS}
"""A receiver that is dead: what it is to be told waits in the store."""
CHARGE = '''
charged = []

def charge(number: str) -> str:
    """Charges a card."""
    charged.append(number)
    return f"{number} was charged"
'''


def agents(folder: Path, url: str, more: str = "") -> dict[str, Any]:
    path = folder / "offhook.toml"
    path.write_text(
        f'[agents.shop]\nkind = "openai"\nmodel = "m"\nbase_url = "{url}"\napi_key = "k"\n'
        f'greeting = "Hello there."\n{more}'
    )
    return dict(load(path).agents)


def recording(folder: Path, **more: Any) -> Recording:
    return Recording.model_validate({"enabled": "always", "directory": folder / "sound", **more})


def everything(folder: Path) -> bytes:
    """All bytes that were kept."""
    return b"".join(
        sorted((p.read_bytes() for p in folder.rglob("*") if p.is_file()), reverse=True)
    )


def assert_no_number(kept: bytes) -> None:
    digits = kept.replace(b" ", b"").replace(b"-", b"")
    for part in (b"4111", b"1111", b"four one", b"one one"):
        assert part not in digits
        assert part not in kept


@pytest_asyncio.fixture(loop_scope="module")
async def fresh(edge: Edge) -> AsyncIterator[Edge]:
    yield edge
    if edge.records.recordings is not None:
        await asyncio.to_thread(edge.records.recordings.close)
        edge.records.recordings = None


def lines_of(folder: Path) -> list[bytes]:
    [timeline] = (folder / "sound").glob("*.jsonl")
    return timeline.read_bytes().splitlines()


async def test_a_card_number_is_in_no_byte_though_the_model_repeats_it(
    fresh: Edge,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    code = tmp_path / "card_shop.py"
    code.write_text(CHARGE)
    kept = tmp_path / "kept"
    kept.mkdir()
    set_up(logs.Log(level="INFO", words=True, json_lines=True))
    answers = (
        [calls("pause_recording")],
        [says("Please tell me the number.")],
        [calls("resume_recording")],
        [calls("charge", number=CARD)],
        [says(f"The card {CARD} is charged.")],
        [says("You are welcome.")],
    )
    tool = 'recording_tools = ["pause"]\n[[agents.shop.tools]]\nfunction = "card_shop:charge"\n'
    async with (
        model(*answers) as scripted,
        keeping(fresh, records(kept, webhooks=[HOOK])),
    ):
        shop = agents(tmp_path, scripted.url, tool)
        async with called(fresh, shop, recording=recording(kept)) as page:
            await until(lambda: "Hello there." in page.words())
            page.hear(type="send-text", id="1", data={"content": "I want to pay"})
            await until(lambda: "tell me the number" in page.words())
            page.hear(type="send-text", id="2", data={"content": f"it is {CARD}"})
            await until(lambda: "is charged" in page.words())
            page.hear(type="send-text", id="3", data={"content": "thank you for order 8812"})
            await until(lambda: "welcome" in page.words())
            page.close(End.CALLER_HUNG_UP)
        await written(fresh)
        assert fresh.records.kept is not None
        store = fresh.records.kept.store
        timeline = store.timeline(page.call_id)
        assert store.outbox.waiting()
    from card_shop import charged  # type: ignore[import-not-found]

    assert charged == [CARD]
    recordings = fresh.records.recordings
    assert recordings is not None
    await asyncio.to_thread(recordings.close)
    assert_no_number(everything(kept) + capsys.readouterr().err.encode())
    set_up(logs.Log(level="ERROR"))
    words = [e.get("text") for e in timeline if e["event"] in ("caller_typed", "agent_turn")]
    assert words[:3] == ["Hello there.", "I want to pay", NOT_KEPT]
    assert NOT_KEPT in words[3:]
    assert "The card **** is charged." in words
    assert "thank you for order 8812" in words
    events = [e["event"] for e in timeline if e["event"].startswith("recording")]
    assert events == ["recording_started", "recording_paused", "recording_resumed"]
    kinds = [json.loads(line)["kind"] for line in lines_of(kept)]
    assert [kind for kind in kinds if kind.startswith("recording")] == events
    assert kinds.index("pause") < kinds.index("resume")


async def test_a_spoken_number_is_neither_heard_nor_read(fresh: Edge, tmp_path: Path) -> None:
    """By the key of the line; what the recognizer makes of the words is kept as little."""
    voice = said_by_flite("four one one one, one one one one")
    async with (
        model([says("Thank you.")], [says("Good bye.")]) as scripted,
        keeping(fresh, records(tmp_path)),
    ):
        settings = recording(tmp_path, pause_key="*")
        async with called(fresh, agents(tmp_path, scripted.url), recording=settings) as page:
            await until(lambda: "Hello there." in page.words())
            await until(lambda: not page.playout.speaking)
            page.receive_digit("*")
            page.feed(voice)
            await until(lambda: "Thank you." in page.words())
            page.receive_digit("*")
            until_ms = page.heard_ms
            page.hear(type="send-text", id="1", data={"content": "that was all"})
            await until(lambda: "Good bye." in page.words())
        await written(fresh)
        assert fresh.records.kept is not None
        timeline = fresh.records.kept.store.timeline(page.call_id)
    said = [m["data"]["text"] for m in page.told if m.get("type") == "user-transcription"]
    heard = [text for text in said if text and text != "that was all"]
    assert heard
    recordings = fresh.records.recordings
    assert recordings is not None
    await asyncio.to_thread(recordings.close)
    kept = bytes_of(tmp_path) + b"\n".join(lines_of(tmp_path))
    for text in heard:
        # Its beginning, "for", is in other words too.
        assert text.count(" ") < 2 or text.encode() not in kept
    [turn] = [e for e in timeline if e["event"] == "caller_turn"]
    assert turn["text"] == NOT_KEPT
    assert "dtmf" not in [e["event"] for e in timeline]
    [paused] = [e["at_ms"] for e in timeline if e["event"] == "recording_paused"]
    [started] = [e["at_ms"] for e in timeline if e["event"] == "recording_started"]
    [sound] = (tmp_path / "sound").glob("*.ogg")
    caller = decode(sound)[0]
    begin, end = (paused - started + 60) * 48, (until_ms - started - 60) * 48
    assert abs(caller[begin:end]).max() < 30


async def test_keys_of_a_secret_are_silence_until_they_have_come(
    fresh: Edge, tmp_path: Path
) -> None:
    answers = (
        [says("Type it, please."), calls("gather_digits", count=4, secret=True)],
        [says("Thank you.")],
    )
    async with model(*answers) as scripted, keeping(fresh, records(tmp_path)):
        shop = agents(tmp_path, scripted.url)
        async with called(fresh, shop, recording=recording(tmp_path)) as page:
            await until(lambda: "Hello there." in page.words())
            page.hear(type="send-text", id="1", data={"content": "I have a PIN"})
            await until(lambda: page.recording.paused)
            await until(lambda: "Type it, please." in page.words())
            for key in "4711":
                page.receive_digit(key)
            await until(lambda: "Thank you." in page.words())
            assert page.recording.state == "on"
        await written(fresh)
        assert fresh.records.kept is not None
        timeline = fresh.records.kept.store.timeline(page.call_id)
    [turn] = [e for e in timeline if e["event"] == "caller_turn"]
    assert turn["text"] == NOT_KEPT
    assert b"4711" not in bytes_of(tmp_path)


async def test_a_secret_detail_is_noted_as_a_mask(fresh: Edge, tmp_path: Path) -> None:
    answers = (
        [calls("pause_recording")],
        [says("The number, please.")],
        [calls("note_details", card=CARD.replace(" ", ""))],
        [says("Noted.")],
    )
    detail = '[agents.shop.collect.card]\ntype = "digits"\nsecret = true\nrepeat = false\n'
    async with model(*answers) as scripted, keeping(fresh, records(tmp_path)):
        shop = agents(tmp_path, scripted.url, detail)
        async with called(fresh, shop, recording=recording(tmp_path)) as page:
            await until(lambda: "Hello there." in page.words())
            page.hear(type="send-text", id="1", data={"content": "I want to pay"})
            await until(lambda: "number, please" in page.words())
            page.hear(type="send-text", id="2", data={"content": CARD})
            await until(lambda: "Noted." in page.words())
            assert page.recording.state == "on"
            assert page.collected == {"card": "****"}
        await written(fresh)
        assert fresh.records.kept is not None
        call = fresh.records.kept.store.show(page.call_id)
    assert call is not None
    assert call["collected"] == {"card": "****"}
    assert_no_number(bytes_of(tmp_path))
    asks = json.dumps(scripted.requests[0])
    assert "card is secret: call pause_recording before you ask for it" in asks


FLOW = """
initial = "hello"
[nodes.hello]
task = "Ask what they want."
functions = [{name = "pay", description = "d", next = "card"}]
[nodes.card]
task = "Ask for the card."
collect = ["card"]
functions = [{name = "leave", description = "d", next = "bye"}]
[nodes.bye]
task = "Say goodbye."
post_actions = [{hang_up = true}]
"""


async def test_a_node_that_asks_for_a_secret_pauses_whatever_the_model_does(
    fresh: Edge, tmp_path: Path
) -> None:
    noted = [calls("note_details", card=CARD.replace(" ", ""))]
    answers = [calls("pay")], [says("The number, please.")], noted, [says("All right.")]
    flow = tmp_path / "flow.toml"
    flow.write_text(FLOW)
    detail = (
        f'flow = "{flow}"\n[agents.shop.collect.card]\n'
        'type = "digits"\nsecret = true\nrepeat = false\n'
    )
    async with model(*answers) as scripted, keeping(fresh, records(tmp_path)):
        shop = agents(tmp_path, scripted.url, detail)
        async with called(fresh, shop, recording=recording(tmp_path)) as page:
            await until(lambda: "Hello there." in page.words())
            page.hear(type="send-text", id="1", data={"content": "I want to pay"})
            await until(lambda: "number, please" in page.words())
            assert page.recording.state == "paused"
            page.hear(type="send-text", id="2", data={"content": CARD})
            await until(lambda: "All right." in page.words())
            assert page.recording.state == "on"
        await written(fresh)
        assert fresh.records.kept is not None
        timeline = fresh.records.kept.store.timeline(page.call_id)
    events = [(e["event"], e["by"]) for e in timeline if e["event"].startswith("recording")]
    assert events == [
        ("recording_started", "settings"),
        ("recording_paused", "detail"),
        ("recording_resumed", "detail"),
    ]
    assert_no_number(bytes_of(tmp_path))


async def test_a_model_starts_and_stops_the_recording(fresh: Edge, tmp_path: Path) -> None:
    answers = (
        [calls("start_recording")],
        [says("It is on.")],
        [calls("stop_recording")],
        [says("It is off.")],
    )
    settings = recording(tmp_path, enabled="on_demand", notice="This call is recorded.")
    async with model(*answers) as scripted, keeping(fresh, records(tmp_path)):
        shop = agents(tmp_path, scripted.url, 'recording_tools = ["start"]\n')
        async with called(fresh, shop, recording=settings) as page:
            await until(lambda: "Hello there." in page.words())
            assert not page.recording.on
            page.hear(type="send-text", id="1", data={"content": "you may record this"})
            await until(lambda: "It is on." in page.words())
            assert page.recording.state == "on"
            page.hear(type="send-text", id="2", data={"content": "stop it"})
            await until(lambda: "It is off." in page.words())
        await written(fresh)
        assert fresh.records.kept is not None
        timeline = fresh.records.kept.store.timeline(page.call_id)
    assert "This call is recorded. It is on." in page.words()
    events = [(e["event"], e["by"]) for e in timeline if e["event"].startswith("recording")]
    assert events == [("recording_started", "agent"), ("recording_stopped", "agent")]
    [first, *_] = [json.loads(line) for line in lines_of(tmp_path)][1:]
    assert (first["kind"], first["at_ms"]) == ("recording_started", 0)


# --- over HTTP ---


async def test_the_operator_starts_pauses_and_stops_it(fresh: Edge, tmp_path: Path) -> None:
    runner = Runner(application(fresh))
    await runner.setup()
    await runner.listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    settings = recording(tmp_path, enabled="on_demand", notice="This call is recorded.")
    try:
        async with model([says("Good bye.")]) as scripted, keeping(fresh, records(tmp_path)):
            shop = agents(tmp_path, scripted.url)
            async with called(fresh, shop, recording=settings) as page:
                path = f"{url}/calls/{page.call_id}/recording"
                await until(lambda: "Hello there." in page.words())
                assert everything(tmp_path / "sound") == b""
                states = []
                for action in ("pause", "start", "resume", "stop", "start", "start"):
                    status, body = await asked(path, "POST", {}, {"action": action})
                    states.append((status, body["recording"]))
                assert [state for _, state in states] == [
                    *("paused", "paused", "on", "off", "on", "on")
                ]
                assert page.words().count("This call is recorded.") == 2
                for body in ({}, {"action": "erase"}, [], {"action": "stop", "more": 1}):
                    status, told = await asked(path, "POST", {}, body)
                    assert status == 400
                    assert '{"action": "pause"}' in told["error"]
                none = await asked(f"{url}/calls/nobody/recording", "POST", {}, {"action": "stop"})
                assert none[0] == 404
            await written(fresh)
            assert fresh.records.kept is not None
            call = fresh.records.kept.store.show(page.call_id)
            timeline = fresh.records.kept.store.timeline(page.call_id)
    finally:
        await runner.cleanup()
    assert call is not None
    assert call["recording"] == str(tmp_path / "sound" / "phone.ogg")
    assert b"OggS" in everything(tmp_path / "sound")
    told = [(e["event"], e.get("notice")) for e in timeline if e["event"] == "recording_started"]
    assert told == [("recording_started", "This call is recorded.")] * 2


async def test_a_call_that_is_never_recorded_says_so(fresh: Edge, tmp_path: Path) -> None:
    runner = Runner(application(fresh))
    await runner.setup()
    await runner.listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with (
            model() as scripted,
            called(fresh, agents(tmp_path, scripted.url)) as page,
        ):
            await until(lambda: "Hello there." in page.words())
            path = f"{url}/calls/{page.call_id}/recording"
            status, body = await asked(path, "POST", {}, {"action": "start"})
    finally:
        await runner.cleanup()
    assert status == 409
    assert "[recording] enabled" in body["error"]
