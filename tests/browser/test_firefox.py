"""The page in Firefox: a call with a question, keys, and its end."""

import asyncio
import base64
from pathlib import Path

import pytest

from tests.browser.conftest import WAIT, microphone, serving
from tests.browser.firefox_io import firefox

pytestmark = pytest.mark.browser

BEFORE = """() => {
  if (!navigator.mediaDevices) return;
  const bytes = Uint8Array.from(atob("%s"), (byte) => byte.charCodeAt(0));
  navigator.mediaDevices.getUserMedia = async () => {
    const player = new Audio(URL.createObjectURL(new Blob([bytes], { type: "audio/wav" })));
    await new Promise((then) => (player.onloadedmetadata = then));
    window.ask = () => player.play();
    return player.mozCaptureStream();
  };
  const Native = RTCPeerConnection;
  window.RTCPeerConnection = function (settings) {
    return (window.peer = new Native(settings));
  };
}"""
"""A microphone that says what is in a sound file, once `ask()` is called, without an AudioContext:
in Firefox none runs without a sound card. And the page's connection, to be looked at."""
HEARD = """peer.getStats().then((all) =>
  [...all.values()].find(({ type }) => type === "inbound-rtp").totalAudioEnergy)"""
"""The energy of what the agent said, as the browser decoded it (W3C webrtc-stats)."""
QUIET = "document.getElementById('phase').textContent === 'Listening'"
TURNS = """[...document.querySelectorAll('#log > .turn')].map((turn) =>
  [turn.classList[1], turn.querySelector('p').textContent.trim()])"""


@pytest.mark.slow
async def test_a_call_from_the_page_in_firefox(program: str, tmp_path: Path) -> None:
    wav = await microphone(tmp_path / "caller.wav", ("What are your opening hours?", 0.5))
    sound = base64.b64encode(await asyncio.to_thread(wav.read_bytes)).decode()
    profile = tmp_path / "profile"
    profile.mkdir()
    async with (
        serving(OFFHOOK_LOG_LEVEL="DEBUG") as server,
        firefox(program, profile) as page,
    ):
        await page.before_every_page(BEFORE % sound)
        await page.goto(f"{server.url}/")
        await page.click("#call")
        await page.until("document.body.dataset.state === 'talking'")
        await page.until("document.querySelector('.turn.agent .word')")
        await page.until(QUIET)
        energy = await page.evaluate(HEARD)
        await page.evaluate("ask()")
        await page.until("document.querySelector('.waterfall .total')")
        await page.until(QUIET)
        turns = await page.evaluate(TURNS)
        for key in "42#":
            await page.click(f"#keypad button:nth-of-type({'123456789*0#'.index(key) + 1})")
        await page.until("document.getElementById('log').textContent.includes('[pressed 42#]')")
        await page.until("document.getElementById('quality-word').textContent !== 'Measuring'")
        await page.click("#hangup")
        await page.until("document.body.dataset.state === 'ended'")
        await page.until("!document.getElementById('keep').hidden")
        troubles = page.troubles
    assert troubles == []
    assert server.faults() == []
    assert energy > 0.001
    turns = [(who, words) for who, words in turns if not WAIT.startswith(words)]
    (_, greeting), (caller, question), (agent, answer) = turns[:3]
    assert (caller, agent) == ("caller", "agent")
    assert greeting == server.events("agent_turn")[0]["text"]
    assert question == server.events("caller_turn")[0]["text"]
    assert "hours" in question
    said = [turn["text"] for turn in server.events("agent_turn")]
    assert answer == [text for text in said if not WAIT.startswith(text)][1]
    assert len(server.events("dtmf")) == 3
    assert [event["reason"] for event in server.events("call_ended")] == ["the caller hung up"]
