"""A worker that refuses the language of calls: known once a call meets it."""

from pathlib import Path

import pytest
from loguru import logger

from offhook.pipeline.conversation.sentences import SENTENCES, Occasion
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.web.config.config import Agent, Config
from offhook.web.config.engines import Asr
from offhook.web.edge.edge_io import Edge
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics
from offhook.web.workers.worker_io import Worker, WorkerSettings
from tests.pipeline.conversation.phone import model, says
from tests.support.waiting import until
from tests.web.conftest import CONFIG
from tests.web.edge.agents.test_agent import called, said_by_flite
from tests.web.workers.workers import LosableServer

QUESTION = "When are you open?"
REFUSED = "PocketSphinx hears English (en) only, not de"


@pytest.mark.parametrize("preload", [False, True])
async def test_the_caller_hears_that_nothing_was_heard_and_the_log_says_why(
    tmp_path: Path, preload: bool
) -> None:
    said: list[str] = []
    sink = logger.add(lambda message: said.append(str(message)))
    worker = LosableServer(tmp_path / "asr.sock")
    settings = WorkerSettings("pocketsphinx", "en-us", audio_cache="off")
    await worker.serve(Worker(settings, lambda told: PocketSphinxRecognizer(1), AsrMetrics()))
    asr = Asr(url=worker.url, language="de", preload=preload)
    edge = Edge(Config.model_validate({**dict(CONFIG), "asr": asr}))
    await edge.start()
    try:
        if preload:  # nobody can call before it is mended
            await until(lambda: any(REFUSED in line for line in said))
            assert not edge.ready
            assert any(f"[asr] wants the language 'de': {REFUSED}" in line for line in said)
            return
        question = said_by_flite(QUESTION)
        async with model([says("Hello.")]) as endpoint:
            agent = Agent(kind="openai", base_url=endpoint.url, model="scripted", think_ahead=False)
            async with called(edge, {"well": agent}) as page:
                await until(lambda: page.words() == "Hello." and not page.playout.speaking)
                page.feed(question)
                excuse = SENTENCES["de"][Occasion.NOT_HEARD]
                await until(lambda: page.words() == f"Hello. {excuse}")
        assert any(REFUSED in line for line in said)
        assert not any("Traceback" in line for line in said)
    finally:
        await edge.close()
        await worker.down()
        logger.remove(sink)
