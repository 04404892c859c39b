"""Installs torch, in the version of the lock, as a build for CPUs.

On Linux the usual index has builds for NVIDIA's GPUs, whose libraries are 3 GB; those for CPUs, of
200 MB, are on an index of PyTorch's own. Which one pip asks is the user's setting, or TORCH_INDEX.
pip is asked first what it would install: nothing large comes unasked.
"""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parent / "requirements.lock"
PIP = (sys.executable, "-m", "pip")
QUIET = ("--quiet", "--disable-pip-version-check")
GPU_LIBRARIES = ("nvidia-", "cuda-")
HOW = """\
pip would install torch {version} for NVIDIA GPUs here, with about 3 GB of CUDA libraries. A machine
without such a GPU needs the build for CPUs, about 200 MB, which PyTorch publishes on an index of
its own. For its address choose pip and CPU under "Start Locally" on pytorch.org: it follows
--index-url. Then:

    make cpu TORCH_INDEX=ADDRESS

or, once for all, tell it to pip: pip config set global.extra-index-url ADDRESS. If the large build
is what you want: make qwen, and then make cpu uses it.
"""


def locked_version() -> str:
    found = re.search(r"^torch==(\S+)", LOCK.read_text(), re.MULTILINE)
    assert found
    return found[1]


def index(environment: dict[str, str]) -> tuple[str, ...]:
    """Returns the options of pip for another index."""
    address = environment.get("TORCH_INDEX", "")
    return ("--extra-index-url", address) if address else ()


def offered(wanted: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns the metadata of the torch that pip would install. Raises CalledProcessError."""
    asking = ("install", *QUIET, "--dry-run", "--ignore-installed", "--no-deps", "--report", "-")
    told = subprocess.run(
        [*PIP, *asking, *options, f"torch=={wanted}"], stdout=subprocess.PIPE, check=True
    )
    metadata: dict[str, Any] = json.loads(told.stdout)["install"][0]["metadata"]
    return metadata


def is_for_gpus(metadata: dict[str, Any]) -> bool:
    """Whether a build needs libraries for GPUs on this machine."""
    from pip._vendor.packaging.requirements import Requirement

    for line in metadata.get("requires_dist", ()):
        needed = Requirement(line)
        applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if applies and needed.name.lower().startswith(GPU_LIBRARIES):
            return True
    return False


def main() -> int:
    wanted = locked_version()
    try:
        if version("torch").partition("+")[0] == wanted:
            return 0
    except PackageNotFoundError:
        pass
    options = index(dict(os.environ))
    try:
        found = offered(wanted, options)
        if is_for_gpus(found):
            sys.stderr.write(HOW.format(version=wanted))
            return 1
        sys.stdout.write(f"installing torch {found['version']}, about 200 MB\n")
        sys.stdout.flush()
        subprocess.run([*PIP, "install", *QUIET, *options, f"torch=={wanted}"], check=True)
    except subprocess.CalledProcessError:
        return 1  # pip has said why
    return 0


if __name__ == "__main__":
    sys.exit(main())
