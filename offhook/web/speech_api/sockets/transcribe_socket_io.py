"""WS /ws/transcribe: the protocol of `asr_protocol`, on any recognizer."""

from aiohttp import web

from offhook.pipeline.speech.remote.asr_protocol import Request
from offhook.pipeline.speech.remote.worker_protocol import ProtocolError
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.sockets.asr_stream_io import AsrStream
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics
from offhook.web.speech_api.sockets.stream_host_io import MakeStream, StreamHost


async def transcribe_socket(request: web.Request) -> web.StreamResponse:
    """GET /ws/transcribe. Raises ApiError 400, 426, 429, 503."""
    host = StreamHost(request, "transcription")
    if (response := await host.server.handed_over(request)) is not None:
        return response

    def prepare() -> MakeStream:
        wanted = stream_request(dict(request.query))
        metrics = host.server.engine_metrics
        observe = metrics.observer(wanted.options) if isinstance(metrics, AsrMetrics) else None
        return lambda socket: AsrStream(host, socket, wanted, observe)

    return await host.serve(prepare, internal=True)


def stream_request(query: dict[str, str]) -> Request:
    """The query's rate and options. Raises ApiError 400."""
    try:
        return Request.parse(query)
    except ProtocolError as error:
        named = str(error).partition(" ")[0]
        raise ApiError(400, str(error), named if named in query else None) from error
