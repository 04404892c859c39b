"""The end-of-turn model that a server starts with."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from offhook.pipeline.conversation.turns.user_turn_io import TurnDetection
from offhook.pipeline.speech.vad.smart_turn_io import SmartTurn
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.engines import Asr, TurnTaking
from offhook.web.http.metrics import Metrics
from offhook.web.workers.engines.call_engines_io import CallEngines
from tests.support.turn_models import loudness, with_state


@asynccontextmanager
async def started(model: str) -> AsyncIterator[TurnDetection]:
    config = Config(asr=Asr(engine="pocketsphinx"), turn=TurnTaking(model=model, end_silence=300))
    engines = CallEngines(config, Metrics(lambda: (), lambda: 0.0))
    await engines.open()
    try:
        yield engines.configured.turn_detection
    finally:
        await engines.close()


async def test_smart_turn_is_asked_of_workers_too() -> None:
    async with started("smart-turn") as turns:
        assert isinstance(turns.model, SmartTurn)
        assert turns.ask_engine
        assert turns.settings.end_silence == 300


async def test_no_other_model_is(tmp_path: Path) -> None:
    async with started("words") as turns:
        assert (turns.model, turns.ask_engine) == (None, False)
    async with started(str(loudness(tmp_path / "eou.onnx", 1, 32_000))) as turns:
        assert turns.model is not None
        assert (turns.model.name, turns.ask_engine) == ("eou.onnx", False)


async def test_a_server_does_not_start_with_what_is_no_model(tmp_path: Path) -> None:
    file = with_state(tmp_path / "eou.onnx")
    with pytest.raises(ConfigError) as caught:
        async with started(str(file)):
            pass
    assert str(caught.value).startswith(f"turn.model: {file} takes sound float32 [1, 512], state")
    assert "wanted: one input: float32 [1, N], 16000 Hz mono" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
