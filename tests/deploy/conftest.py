from collections.abc import Iterator

import pytest

from tests.deploy.servers import series, servers


@pytest.fixture(scope="session")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of running servers, by the names of Prometheus' jobs."""
    with servers(tmp_path_factory.mktemp("servers")) as running:
        yield running


@pytest.fixture(scope="session")
def exposed(addresses: dict[str, str]) -> dict[str, set[str]]:
    """The series of each."""
    return {job: series(address) for job, address in addresses.items()}
