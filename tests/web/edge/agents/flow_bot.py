"""A Pipecat bot with a flow, as its users write them: it knows nothing of offhook but its voice."""

import os

from pipecat.flows import FlowManager, NodeConfig
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.runner.types import RunnerArguments
from pipecat.runner.utils import create_transport
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.transports.base_transport import BaseTransport, TransportParams
from pipecat.workers.runner import WorkerRunner

from offhook.pipeline.conversation.services_io import OffhookTTS
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer


def task(words: str) -> list[dict[str, str]]:
    return [{"role": "developer", "content": words}]


async def note_day(flow_manager: FlowManager, day: str) -> tuple[str, NodeConfig]:
    """Notes the day on which the caller comes.

    Args:
        day: The weekday.
    """
    last = NodeConfig(
        name="last",
        task_messages=task(f"Confirm {day}."),
        pre_actions=[{"type": "tts_say", "text": "I write that down."}],
        post_actions=[{"type": "end_conversation"}],
    )
    return day, last


async def bot(runner_args: RunnerArguments) -> None:
    params = {"webrtc": lambda: TransportParams(audio_in_enabled=True, audio_out_enabled=True)}
    transport = await create_transport(runner_args, params)
    voice = FliteSynthesizer()
    await voice.start()
    llm = OpenAILLMService(
        api_key="none",
        base_url=os.environ["FLOW_BOT_URL"],
        settings=OpenAILLMService.Settings(model="scripted"),
    )
    aggregators = LLMContextAggregatorPair(LLMContext())
    worker = PipelineWorker(
        Pipeline(
            [
                *(transport.input(), aggregators.user(), llm, OffhookTTS(voice)),
                *(transport.output(), aggregators.assistant()),
            ]
        )
    )
    flow = FlowManager(worker=worker, llm=llm, context_aggregator=aggregators, transport=transport)
    first = NodeConfig(
        name="first",
        role_message="You are Ada.",
        task_messages=task("Ask for a day."),
        functions=[note_day],
    )

    @transport.event_handler("on_client_connected")
    async def on_client_connected(transport: BaseTransport, client: object) -> None:
        await flow.initialize(first)

    @transport.event_handler("on_client_disconnected")
    async def on_client_disconnected(transport: BaseTransport, client: object) -> None:
        await worker.cancel()

    runner = WorkerRunner(handle_sigint=runner_args.handle_sigint)
    await runner.add_workers(worker)
    await runner.run()
    await voice.close()
