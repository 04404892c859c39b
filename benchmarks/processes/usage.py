"""CPU, memory and GPU of processes while a benchmark runs."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from shutil import which
from time import monotonic

from benchmarks.processes.process import Footprint, cpu_s

EVERY_S = 1.0
GPU_QUERY = ("--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits")


@dataclass
class Samples:
    """One process, or one GPU, over time."""

    name: str
    at: list[float] = field(default_factory=list)
    """Times in s of this machine's monotonic clock."""
    percent: list[float] = field(default_factory=list)
    """Of one core, or of the GPU."""
    mb: list[float] = field(default_factory=list)
    """Resident memory, or the GPU's used memory."""


class Usage:
    """Samples processes by name; their process ids may change, as they are started again."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.processes: dict[str, Samples] = {}
        self.gpus: dict[str, Samples] = {}
        self._pids = pids
        self._before: dict[int, tuple[float, float]] = {}
        self._gpu = which("nvidia-smi")

    async def watch(self) -> None:
        """Runs until cancelled."""
        while True:
            for name, pid in dict(self._pids).items():
                self._sample(name, pid)
            if self._gpu:
                await self._sample_gpus(self._gpu)
            await asyncio.sleep(EVERY_S)

    def _sample(self, name: str, pid: int) -> None:
        now = monotonic()
        try:
            cpu, mb = cpu_s(pid), Footprint.of(pid).rss_mb
        except (OSError, KeyError, IndexError):  # it has ended
            self._before.pop(pid, None)
            return
        before = self._before.get(pid)
        self._before[pid] = now, cpu
        if before is not None:
            samples = self.processes.setdefault(name, Samples(name))
            samples.at.append(round(now, 2))
            samples.percent.append(round(100 * (cpu - before[1]) / (now - before[0]), 1))
            samples.mb.append(mb)

    async def _sample_gpus(self, program: str) -> None:
        process = await asyncio.create_subprocess_exec(
            program, *GPU_QUERY, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        output, _ = await process.communicate()
        for row in output.decode().splitlines():
            number, percent, mb = row.split(",")
            samples = self.gpus.setdefault(number, Samples(f"GPU {number}"))
            samples.at.append(round(monotonic(), 2))
            samples.percent.append(float(percent))
            samples.mb.append(float(mb))
