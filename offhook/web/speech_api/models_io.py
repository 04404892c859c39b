"""GET /v1/models, /v1/models/{model} and /openapi.json."""

from typing import Any

from aiohttp import web

from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.openapi import description
from offhook.web.speech_api.server_io import SPEECH, SpeechServer


async def described(request: web.Request) -> web.Response:
    """GET /openapi.json."""
    kinds = request.app[SPEECH].engines
    return web.json_response(description(asr="transcription" in kinds, tts="speech" in kinds))


async def listed_models(request: web.Request) -> web.Response:
    """GET /v1/models."""
    return web.json_response({"object": "list", "data": _models(request.app[SPEECH])})


async def one_model(request: web.Request) -> web.Response:
    """GET /v1/models/{model}. Raises ApiError 404."""
    name = request.match_info["model"]
    for model in _models(request.app[SPEECH]):
        if model["id"] == name:
            return web.json_response(model)
    raise ApiError(404, f"there is no model {name[:200]!r} here", "model", "model_not_found")


def _models(server: SpeechServer) -> list[dict[str, Any]]:
    names: dict[str, None] = {}
    for kind in server.engines:
        names.update(dict.fromkeys((*server.own_models(kind), *server.aliases(kind))))
    known = {"object": "model", "created": 0, "owned_by": "offhook"}
    return [{"id": name, **known} for name in names]
