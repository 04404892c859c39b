"""What several rooms' tests need: the loopback network, and a look at what is left over."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator

import aioice.ice
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.signaling.peer_io import use_addresses
from tests.support.environment import OF_TESTS
from tests.support.ports import free_port
from tests.support.prefork import fork_servers

EXAMPLES = 30
"""Of a property test that names no number of its own."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--examples",
        type=int,
        metavar="N",
        help="draw N new examples for every property test, instead of the same few each time",
    )


def pytest_configure(config: pytest.Config) -> None:
    examples = config.option.examples
    settings.register_profile(
        "offhook",
        max_examples=EXAMPLES,
        derandomize=examples is None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],  # as every busy machine is
        print_blob=True,
    )
    settings.load_profile("offhook")
    if examples is None:
        # Of the modules that happen to be loaded: any change would draw other examples everywhere.
        providers._get_local_constants = providers.Constants
    os.environ.update(OF_TESTS)
    fork_servers()
    aioice.ice.CONSENT_FAILURES = 1000  # a call is not lost because this machine is busy


def pytest_collection_finish(session: pytest.Session) -> None:
    if (examples := session.config.option.examples) is not None:
        # Past the metaclass, which forbids it: tests that name a number of their own get N too.
        type.__setattr__(settings, "max_examples", property(lambda _: examples))


@pytest.fixture(autouse=True)
def calls_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges within the test's process refuse no call because this machine is busy."""
    monkeypatch.setattr(PacketClock, "recent_lateness_ms", lambda clock: 0.0)


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """ICE on 127.0.0.1 only, for the length of a test."""
    monkeypatch.setattr(aioice.ice, "get_host_addresses", aioice.ice.get_host_addresses)
    use_addresses(["127.0.0.1"])


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    """Fails a test that leaves tasks or open files behind, or an exception that nobody took."""
    faults: list[str] = []

    def note(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        faults.append(f"{context['message']}: {context.get('exception')!r}")

    asyncio.get_running_loop().set_exception_handler(note)
    tasks, files = asyncio.all_tasks(), _open_files()
    yield
    for _ in range(100):
        left = asyncio.all_tasks() - tasks - {asyncio.current_task()}
        if not left and _open_files() <= files:
            break
        await asyncio.sleep(0.01)
    assert not left
    assert _open_files() <= files
    assert not faults


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Pytest's, which knows the standard library's logging only, with our records too."""
    sink = logger.add(caplog.handler, level=0, format="{message}")
    yield caplog
    with contextlib.suppress(ValueError):  # a test that sets up the log has removed all sinks
        logger.remove(sink)


@pytest.fixture(autouse=True, scope="session")
def quiet() -> None:
    """No log on standard error unless a test asks for it."""
    logger.remove()


@pytest.fixture(autouse=True, scope="session")
def ports_are_shared() -> None:
    """The lock of this process's share of ports stays open: before open files are counted."""
    free_port()
