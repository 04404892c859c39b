"""Which CPUs are the GPU's, as Linux tells it; and that a thread stays on them."""

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.engines.shared import affinity_io
from offhook.pipeline.engines.shared.affinity_io import cap_threads, numa_cpus, parse_list

GPU = "0000:17:00.0"


def machine(root, nodes, gpu_node):
    """A /sys with NUMA nodes, as their lists of CPUs, and a GPU on one of them."""
    folder = root / "devices/system/node"
    folder.mkdir(parents=True)
    (folder / "online").write_text(f"0-{len(nodes) - 1}\n" if len(nodes) > 1 else "0\n")
    for number, cpus in enumerate(nodes):
        (folder / f"node{number}").mkdir()
        (folder / f"node{number}" / "cpulist").write_text(f"{cpus}\n")
    device = root / "bus/pci/devices" / GPU
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{gpu_node}\n")
    return root


def test_the_cpus_of_the_gpus_node(tmp_path):
    sysfs = machine(tmp_path, ["0-3,8-9", "4-7,10-11"], gpu_node=1)
    assert numa_cpus(GPU, sysfs) == {4, 5, 6, 7, 10, 11}


@pytest.mark.parametrize(
    ("nodes", "gpu_node", "address"),
    [
        (["0-7"], 0, GPU),  # one node: all are near
        (["0-3", "4-7"], -1, GPU),  # the firmware does not say
        (["0-3", "4-7"], 1, "0000:99:00.0"),  # another GPU, which is not shown here
        (["0-3", "4-7"], 1, ""),  # no GPU
        (["0-3", "what"], 1, GPU),
    ],
)
def test_where_nothing_can_be_said_a_thread_is_left_alone(tmp_path, nodes, gpu_node, address):
    assert numa_cpus(address, machine(tmp_path, nodes, gpu_node)) == frozenset()


def test_a_machine_without_sysfs(tmp_path):
    assert numa_cpus(GPU, tmp_path / "none") == frozenset()


@given(st.sets(st.integers(0, 300)))
def test_a_list_of_the_kernel_is_read_back(numbers):
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    text = ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)
    assert parse_list(text + "\n") == numbers


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux has it")
def test_only_the_thread_that_asks_stays_near(monkeypatch):
    before = os.sched_getaffinity(0)
    one = min(before)
    monkeypatch.setattr(affinity_io, "pci_address", lambda device: GPU)
    monkeypatch.setattr(affinity_io, "numa_cpus", lambda address: frozenset({one, 100_000}))
    seen = []

    def infer():
        assert affinity_io.pin_to_numa_node(None) == {one}
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=infer)
    thread.start()
    thread.join()
    assert seen == [{one}]
    assert os.sched_getaffinity(0) == before


def test_thread_caps_leave_what_the_user_has_set():
    environment = {"OMP_NUM_THREADS": "6"}
    cap_threads(environment)
    assert environment == {"OMP_NUM_THREADS": "6", "MKL_NUM_THREADS": "1"}
