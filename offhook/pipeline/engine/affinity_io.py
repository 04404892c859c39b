"""Where the inference thread runs: on the CPUs next to its GPU, and how many threads help it.

On a machine of several NUMA nodes the GPU hangs on one of them; page-locked buffers that another
node fills, and launches from there, cross the link between the nodes every time.
"""

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SYSFS = Path("/sys")
THREAD_CAPS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def cap_threads(environment: MutableMapping[str, str] = os.environ) -> None:
    """Before torch is imported: a library that makes threads of its own makes one, unless the user
    has set how many. The inference thread sets torch's own number itself."""
    for name in THREAD_CAPS:
        environment.setdefault(name, "1")


def stay_near(device: "torch.device") -> frozenset[int]:
    """Keep the calling thread, and those it starts, on the CPUs of the GPU's NUMA node, as far as
    it may run there; returns them. Empty: the thread was left as it is, because there is no GPU,
    one node, or nothing known of them."""
    cpus = near(pci_address(device))
    if not cpus:
        return cpus
    allowed = cpus & os.sched_getaffinity(0)
    if allowed:
        os.sched_setaffinity(0, allowed)
    return allowed


def pci_address(device: "torch.device") -> str:
    """As in /sys/bus/pci/devices: "0000:17:00.0"; empty for a CPU, or a torch that does not say."""
    if device.type != "cuda":
        return ""
    import torch

    gpu: Any = torch.cuda.get_device_properties(device)
    if not hasattr(gpu, "pci_bus_id"):  # torch before 2.8
        return ""
    return f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"


def near(address: str, sysfs: Path = SYSFS) -> frozenset[int]:
    """CPUs of the NUMA node that the PCI device hangs on. Empty when all CPUs are, or when the
    kernel does not say."""
    try:
        if not address or len(_read(sysfs / "devices/system/node/online")) < 2:
            return frozenset()
        node = (sysfs / "bus/pci/devices" / address / "numa_node").read_text()
        # -1: the firmware has not said, and there is no such folder.
        return _read(sysfs / f"devices/system/node/node{int(node)}/cpulist")
    except (OSError, ValueError):
        return frozenset()


def _read(path: Path) -> frozenset[int]:
    return parse_list(path.read_text())


def parse_list(text: str) -> frozenset[int]:
    """The kernel's lists of numbers, as "0-3,8". Raises ValueError."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)
