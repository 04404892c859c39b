"""What /openapi.json says is what there is; schemathesis asks all that it allows, and worse."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from offhook.web.speech_api.openapi import description
from offhook.web.workers.routes_io import ROUTES
from tests.web.speech_api.conftest import quickly_served

SOCKETS = ("/v1/realtime/", "/ws/transcribe", "/v1/realtime", "/v1/audio/speech/ws", "/ws/speak")
"""OpenAPI has no words for them."""
EXAMPLES = settings.default.max_examples // 15
"""Requests to each operation, of each kind."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a server on scripted engines, on a loop of its own: schemathesis blocks."""
    found: list[str] = []
    up, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with quickly_served() as quick:
            found.append(quick.url)
            up.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="server")
    thread.start()
    up.wait()
    yield found[0]
    over.set()
    thread.join()


def test_every_route_is_described_and_nothing_else() -> None:
    described = {
        (method.upper(), path)
        for path, operations in description(asr=True, tts=True)["paths"].items()
        for method in operations
        if method != "parameters"
    }
    there = {
        (route.method, route.path.replace(":.+", ""))
        for route in ROUTES
        if route.path not in (*SOCKETS, "/openapi.json")
    }
    assert described == there


def test_a_server_that_only_speaks_describes_only_that() -> None:
    paths = description(asr=False, tts=True)["paths"]
    assert "/v1/audio/speech" in paths
    assert "/v1/audio/transcriptions" not in paths


def test_what_the_description_allows_is_answered_as_it_says(address: str) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        negative_data_rejection,
        response_schema_conformance,
        status_code_conformance,
    )

    # 500 is no status of the description; 501 and 503 are.
    checks = [
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
        negative_data_rejection,
    ]
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    asked = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in GenerationMode:
            strategy = operation.as_strategy(generation_mode=mode)

            @settings(
                max_examples=EXAMPLES,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=strategy)
            def ask(case: object) -> None:
                nonlocal asked
                asked += 1
                case.call_and_validate(base_url=address, checks=checks)

            with suppress(Unsatisfiable):  # nothing can be wrong where nothing is given
                ask()
    assert asked > 10 * EXAMPLES
