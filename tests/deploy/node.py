"""A node of a cluster for one test: an address and a network of its own, in which containers of
deploy/kubernetes run as they would there, with this machine's programs in place of the images'."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.deploy.cluster import Container, selected
from tests.deploy.cluster import of_kind as resources
from tests.deploy.servers import ROOT
from tests.deploy.test_dockerfile import steps_of
from tests.support.waiting import HANGS_S

ADDRESS = "192.0.2.10"
HERE = "192.0.2.9"
"""Of this machine, as the node sees it."""
LINK = "offhook-node"
ENTRY = [sys.executable, "-m", "offhook"]
SYSTEM = ("usr", "bin", "sbin", "lib", "lib64", "dev", "proc", "sys")
IMAGE_FOLDERS = (
    "/models",
    "/kernels",
    "/voices",
    "/recordings",
    "/run/offhook",
    "/var/lib/offhook",
)
LOOK_S = 0.1
TOOLS = ("unshare", "nsenter", "setpriv", "ip", "redis-server")
MISSING = "" if os.geteuid() == 0 else "only root makes networks"
MISSING = MISSING or ", ".join(f"no {tool}" for tool in TOOLS if shutil.which(tool) is None)
"""Why there can be no node here."""
if any(path.is_relative_to("/tmp") for path in (ROOT, Path(sys.prefix))):
    MISSING = MISSING or "this checkout or its Python is in /tmp, and each container has its own"

SET_UP = """
set -e
ip link set lo up
root=$1 files=$2; shift 2
mount -t tmpfs -o mode=755 none "$root"
until [ "$1" = -- ]; do
    if [ -L "$1" ]; then
        cp -P "$1" "$root/"
    else
        mkdir -p "$root$1"
        mount --rbind "$1" "$root$1"
    fi
    shift
done
shift
cp -a /etc "$root/etc"
cp "$files/hosts" "$root/etc/hosts"
until [ "$1" = -- ]; do mkdir -p "$root$1"; mount --bind "$files$1" "$root$1"; shift; done
shift
until [ "$1" = -- ]; do mkdir -p "$root$1"; mount -t tmpfs -o mode=1777 none "$root$1"; shift; done
shift
for folder; do mkdir -p "$root$folder"; done
mount -o remount,ro "$root"
touch "$files/made"
exec sleep infinity
"""
"""Arguments: the root, where files are; what it has of this machine, --, folders of ConfigMaps, --,
of emptyDirs, --, of the image."""


@dataclass
class Running:
    container: Container
    process: "subprocess.Popen[bytes]"
    log: Path

    def asked(self, probe: dict[str, Any]) -> bool:
        """What the kubelet finds."""
        if "exec" in probe:
            return self.node.run(probe["exec"]["command"]).returncode == 0
        port = self.container.ports[(probe.get("httpGet") or probe["tcpSocket"])["port"]]
        if "tcpSocket" in probe:
            return self.node.run(["bash", "-c", f"</dev/tcp/{ADDRESS}/{port}"]).returncode == 0
        return self.status(probe["httpGet"]["path"], probe.get("timeoutSeconds", 1)) == 200

    node: "Node" = field(kw_only=True)

    def status(self, path: str, limit_s: float = 10) -> int:
        """Of an answer; 0 without one."""
        url = f"http://{ADDRESS}:{self.container.ports['http']}{path}"
        try:
            with urlopen(url, timeout=limit_s) as answer:
                status: int = answer.status
                return status
        except HTTPError as error:
            return error.code
        except OSError:
            return 0

    def starts(self) -> None:
        """And becomes ready, within what its startup probe allows."""
        startup = self.container.spec.get("startupProbe") or self.container.spec["readinessProbe"]
        allowed = startup.get("failureThreshold", 3) * startup.get("periodSeconds", 10)
        self.until(lambda: self.asked(startup), max(allowed, 60))
        if ready := self.container.spec.get("readinessProbe"):
            self.until(lambda: self.asked(ready), HANGS_S)
        if alive := self.container.spec.get("livenessProbe"):
            assert self.asked(alive)

    def until(self, happens: Any, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not happens():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(LOOK_S)

    def drains(self) -> None:
        """It is told to end, and takes nothing new from then on, but is not gone."""
        self.process.terminate()
        self.until(lambda: self.status("/readyz") == 503, HANGS_S)
        assert self.status("/healthz") == 200

    def ends(self) -> None:
        """By itself, within its grace."""
        grace: float = self.container.pod_spec["terminationGracePeriodSeconds"]
        assert self.process.wait(grace) == 0, self.log.read_text()


@dataclass
class Node:
    pid: int
    folder: Path
    running: list[Running] = field(default_factory=list)

    def inside(self, command: list[str], folder: str = "/") -> list[str]:
        """The command of a container: without rights, with a root that it cannot write to."""
        user = "--reuid=10001", "--regid=10001", "--clear-groups"
        nothing = "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"
        enter = ["nsenter", "-t", str(self.pid), "-n", "-m", "chroot", str(self.folder / "root")]
        return [*enter, "setpriv", *user, *nothing, "env", "-C", folder, *command]

    def run(self, command: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(self.inside(command), capture_output=True, text=True, timeout=HANGS_S)

    def start(self, container: Container) -> Running:
        """With exactly its command line, environment and files."""
        of_image: dict[str, str] = {}
        words = container.command([], ADDRESS)
        if container.is_offhook:
            of_image = image_environment()
            words = container.command(ENTRY, ADDRESS)
        environment = {**of_image, **container.environment(ADDRESS)}
        environment["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        for path, text in container.files().items():
            file = self.folder / "files" / path[1:]
            file.write_text(text)
            file.chmod(0o555)
        home = "/var/lib/offhook" if container.is_offhook else "/"
        folder = container.spec.get("workingDir", home)
        log = self.folder / f"{container.overlay}-{container.name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.inside(words, folder), env=environment, stdout=output, stderr=output
            )
        self.running.append(Running(container, process, log, node=self))
        return self.running[-1]

    def stop(self) -> None:
        for it in self.running:
            if it.process.poll() is None:
                it.process.kill()
            it.process.wait()


def image_environment() -> dict[str, str]:
    """What the Dockerfile sets, but for what is of the image's own folders."""
    pairs = re.findall(r"(\w+)=(\S+)", " ".join(steps_of("cpu", "ENV")))
    left_out = ("PATH", "PYTHONPATH", "LD_PRELOAD", "MALLOC_CONF")
    given = {name: value for name, value in pairs if name not in left_out}
    return {**given, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


@contextmanager
def node(folder: Path, containers: list[Container]) -> Iterator[Node]:
    """A node for these containers. Of each Service the name has the node's address."""
    files, root = folder / "files", folder / "root"
    root.mkdir()
    configured = {str(Path(path).parent) for it in containers for path in it.files()}
    for path in configured:
        (files / path[1:]).mkdir(parents=True)
    names = " ".join(names_of(containers))
    (files / "hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} {names}\n")
    of_machine = [f"/{name}" for name in SYSTEM if Path(f"/{name}").exists()]
    of_machine += sorted({str(ROOT), sys.prefix, sys.base_prefix})
    made = [*of_machine, "--", *configured, "--", *folders_to_write(containers), "--"]
    holder = subprocess.Popen(
        [
            "unshare",
            "--net",
            "--mount",
            "sh",
            "-c",
            SET_UP,
            "sh",
            root,
            files,
            *made,
            *IMAGE_FOLDERS,
        ]
    )
    here = Node(holder.pid, folder)
    try:
        deadline = time.monotonic() + 30
        while not (files / "made").exists():
            assert holder.poll() is None
            assert time.monotonic() < deadline
            time.sleep(LOOK_S)
        connect(holder.pid)
        yield here
    finally:
        here.stop()
        holder.kill()
        holder.wait()
        with suppress(subprocess.CalledProcessError):  # it goes with the other end, a little later
            subprocess.run(["ip", "link", "del", LINK], check=True, capture_output=True)


def connect(pid: int) -> None:
    """The node's network with this machine's."""
    end = f"{LINK}-0"
    within = ["nsenter", "-t", str(pid), "-n"]
    for command in (
        ["ip", "link", "add", LINK, "type", "veth", "peer", "name", end, "netns", str(pid)],
        ["ip", "addr", "add", f"{HERE}/30", "dev", LINK],
        ["ip", "link", "set", LINK, "up"],
        [*within, "ip", "addr", "add", f"{ADDRESS}/30", "dev", end],
        [*within, "ip", "link", "set", end, "up"],
    ):
        subprocess.run(command, check=True)


def names_of(containers: list[Container]) -> set[str]:
    """Of the Services whose pods they are."""
    return {
        name
        for it in containers
        for name, service in resources(it.overlay, "Service").items()
        if it.pod in selected(it.overlay, {"matchLabels": service["spec"]["selector"]})
    }


def folders_to_write(containers: list[Container]) -> set[str]:
    return {
        mount["mountPath"]
        for it in containers
        for mount in it.spec["volumeMounts"]
        for volume in it.pod_spec["volumes"]
        if volume["name"] == mount["name"] and "emptyDir" in volume
    }
