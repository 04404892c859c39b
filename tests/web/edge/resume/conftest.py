"""A Redis server, and words of 20 ms for the tests that ask for them."""

from collections.abc import Iterator

import pytest

from offhook.web.edge.resume import store_io
from tests.pipeline.speech.voice.test_audio_cache import redis_server


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes back waits for Redis for as long as a busy machine takes."""
    monkeypatch.setattr(store_io, "CLAIM_S", 60)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word takes 20 ms."""
    from benchmarks.servers import scripted

    word = scripted.word_sound()[: 24 * 20]
    monkeypatch.setattr(scripted, "word_sound", lambda: word)
