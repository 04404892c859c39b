"""CPU affinity and thread counts of the inference thread.

On a multi-socket machine the GPU is attached to one NUMA node. Launches and page-locked buffers
from another node cross the inter-socket link every time, so the thread stays on the GPU's node.
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
    """Limits native thread pools to one thread each, unless the user has set the variable. Call it
    before importing torch; the inference thread sets torch's own thread count itself."""
    for name in THREAD_CAPS:
        environment.setdefault(name, "1")


def pin_to_numa_node(device: "torch.device") -> frozenset[int]:
    """Pins the calling thread and the threads it starts to the CPUs of the GPU's NUMA node and
    returns those CPUs. Returns an empty set, changing nothing, without a GPU, on a single-node
    machine, or if the topology is unknown."""
    cpus = numa_cpus(pci_address(device))
    if not cpus:
        return cpus
    allowed = cpus & os.sched_getaffinity(0)
    if allowed:
        os.sched_setaffinity(0, allowed)
    return allowed


def pci_address(device: "torch.device") -> str:
    """Returns the device's address as in /sys/bus/pci/devices, e.g. "0000:17:00.0"; empty for a CPU
    or if torch does not expose it."""
    if device.type != "cuda":
        return ""
    import torch

    gpu: Any = torch.cuda.get_device_properties(device)
    if not hasattr(gpu, "pci_bus_id"):  # torch before 2.8
        return ""
    return f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"


def numa_cpus(address: str, sysfs: Path = SYSFS) -> frozenset[int]:
    """Returns the CPUs of the NUMA node of a PCI device; empty if that is all CPUs or the kernel
    does not report it."""
    try:
        if not address or len(_read(sysfs / "devices/system/node/online")) < 2:
            return frozenset()
        node = (sysfs / "bus/pci/devices" / address / "numa_node").read_text()
        # The firmware reports -1 when it does not know the node; that folder does not exist.
        return _read(sysfs / f"devices/system/node/node{int(node)}/cpulist")
    except (OSError, ValueError):
        return frozenset()


def _read(path: Path) -> frozenset[int]:
    return parse_list(path.read_text())


def parse_list(text: str) -> frozenset[int]:
    """Parses a kernel CPU list such as "0-3,8". Raises ValueError if it is malformed."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)
