"""Whether a speech server serves Wyoming clients too, which takes the package `wyoming`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec

from loguru import logger

from offhook.web.config.config import ConfigError
from offhook.web.config.programs import Speech
from offhook.web.http.networks import private_network
from offhook.web.speech_api.server_io import SpeechServer


def check_package() -> None:
    """Raises ConfigError."""
    if find_spec("wyoming") is None:
        raise ConfigError("speech.wyoming needs the package wyoming: pip install wyoming")


@asynccontextmanager
async def wyoming_clients(server: SpeechServer, settings: Speech) -> AsyncIterator[str]:
    """Serves them while inside, if they are configured; yields the address. Raises ConfigError,
    OSError."""
    if not settings.wyoming:
        yield ""
        return
    check_package()
    from offhook.web.workers.wyoming.server_io import WyomingServer

    networks = [private_network(text) for text in settings.wyoming_networks]
    clients = WyomingServer(server, networks)
    try:
        where = await clients.start(*settings.wyoming_address)
        admitted = ", ".join(("this machine", *map(str, networks)))
        logger.bind(listening=where).info("Wyoming clients: {}, for {}", where, admitted)
        yield where
    finally:
        await clients.close()
