"""Real databases: a file of SQLite, and a PostgreSQL server of this test run."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ports import free_port

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


class Postgres:
    """A PostgreSQL server that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.binaries = BINARIES[-1]
        self._user = "postgres" if os.getuid() == 0 else None
        """It refuses to run as root."""
        folder.mkdir(exist_ok=True)
        if self._user is not None:
            who = pwd.getpwnam(self._user)
            os.chown(folder, who.pw_uid, who.pw_gid)
        self._run("initdb", "-D", str(folder / "data"), "-U", "offhook", "-A", "trust", "-N")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://offhook@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = ("-c", "listen_addresses=127.0.0.1", "-c", f"port={self.port}")
        local = ("-c", f"unix_socket_directories={self.folder}", "-c", "fsync=off")
        command = (str(self.binaries / "postgres"), "-D", str(self.folder / "data"))
        with (self.folder.parent / "postgres.log").open("ab") as log:
            self._process = subprocess.Popen(
                (*command, *options, *local),
                user=self._user,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._run("pg_isready", "-h", "127.0.0.1", "-p", str(self.port), "-t", "60", patient=True)

    def kill(self) -> None:
        """Kills it and all of its children, as a machine that loses its power."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def _run(self, program: str, *arguments: str, patient: bool = False) -> None:
        while True:
            ran = subprocess.run(
                (str(self.binaries / program), *arguments), user=self._user, capture_output=True
            )
            if ran.returncode == 0:
                return
            assert patient, ran.stderr.decode()
            assert self._process is not None
            assert self._process.poll() is None, "PostgreSQL does not start"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    if not BINARIES or shutil.which("psql") is None:
        pytest.skip("PostgreSQL is not installed")
    # Not below pytest's own folder, which belongs to root alone.
    with tempfile.TemporaryDirectory(prefix="offhook-postgres-") as folder:
        Path(folder).chmod(0o711)
        server = Postgres(Path(folder) / "server")
        yield server
        server.kill()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/calls.db"
    server: Postgres = request.getfixturevalue("postgres")
    emptied(server)
    return server.url


def emptied(server: Postgres) -> None:
    import psycopg

    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
