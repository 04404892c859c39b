"""`offhook bench cpu`: what the speech models cost on this machine's CPU.

Each model has its real size and random weights, which cost the same: what is said is meaningless,
so the labels that enter the decoder come from a script at the rate of English speech, and a voice
speaks a clause of 30 tokens. Every model, precision and number of threads is a process of its own.
Columns: CPU seconds of one core per second of speech and stream, the share of real time that a
chunk (of a voice: a frame) takes, memory in MB (the most while loading, and afterwards), and for a
voice the ms from the clauses of all streams to their first sound.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import command
from benchmarks.table import Table, progress

VOICES = {
    "pocket": "english",
    "pocket-24l": "english_2026-09_24l",
    "pocket-18m": "english_18m_refl_2026-10",
    "pocket-7m": "english_7m_refl_2026-10",
    "pocket-2m": "english_2m_refl_2026-10",
}
"""Models of Pocket TTS, as named in `pocket.model.config`."""
MODELS = ("nemotron", "nemotron-3.5", *VOICES)
PRECISIONS = ("int8", "bf16", "fp32")
STREAMS = (1, 4, 8)
CHUNKS = 5
VOICE_FRAMES = 24
COLUMNS = (
    "model precision threads streams cpu_per_s of_real_time peak_mb mb instructions first_sound_ms"
)


@dataclass(frozen=True)
class Case:
    """One row's process."""

    model: str
    precision: str
    threads: int
    streams: tuple[int, ...]
    lookahead: int


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    if options.case:
        given = json.loads(options.case)
        case = Case(**given | {"streams": tuple(given["streams"])})
        for row in (measure_voice if case.model in VOICES else measure)(case):
            print(json.dumps(row), flush=True)
        return 0
    note = f"chunks of {80 * (options.lookahead + 1)} ms, random weights of the real size"
    table = Table("cpu", note, COLUMNS, options.json)
    for model in options.models:
        for precision in options.precisions:
            if model in VOICES and precision == "bf16":
                continue  # voices do not have it
            for threads in options.threads:
                case = Case(model, precision, threads, options.streams, options.lookahead)
                progress(f"{model} in {precision} with {threads} threads")
                if not _run(case, table):
                    return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command("cpu", __doc__)
    parser.add_argument("--models", type=_names(MODELS), default=("nemotron", "pocket"))
    parser.add_argument("--precisions", type=_names(PRECISIONS), default=PRECISIONS)
    parser.add_argument("--threads", type=_numbers, default=(1,))
    parser.add_argument("--streams", type=_numbers, default=STREAMS)
    parser.add_argument("--lookahead", type=int, default=6, help="frames of 80 ms (default 6)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _names(known: Sequence[str]) -> Any:
    def names(text: str) -> tuple[str, ...]:
        given = tuple(text.split(","))
        if unknown := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return given

    return names


def _run(case: Case, table: Table) -> bool:
    """Returns whether the process ended well."""
    command = [sys.executable, "-m", "benchmarks.engines.cpu", "--case", json.dumps(asdict(case))]
    env = os.environ | {"OMP_NUM_THREADS": str(case.threads)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            table.row(**json.loads(line))
    return child.returncode == 0


def measure(case: Case) -> Iterator[dict[str, Any]]:
    """Yields a row of a recognizer for each number of streams."""
    import torch

    from offhook.pipeline.engines.nemotron.model import checkpoint
    from offhook.pipeline.engines.nemotron.runner import Part, chunk_samples
    from offhook.pipeline.engines.nemotron.simulated import SimulatedNemotron, Speech
    from offhook.pipeline.engines.shared.device_io import dtype_of
    from offhook.pipeline.engines.shared.model.int8 import instructions

    torch.set_num_threads(case.threads)
    config = checkpoint.NEMOTRON_0_6B if case.model == "nemotron" else checkpoint.NEMOTRON_3_5_0_6B
    int8 = instructions() if case.precision == "int8" else None
    dtype = dtype_of(torch.device("cpu"), "bf16" if case.precision == "bf16" else "fp32")
    model = checkpoint.random_model(config, "cpu", dtype, int8=int8)
    memory = {"peak_mb": peak_resident_mb(), "mb": resident_mb()}
    runner = SimulatedNemotron(model, max(case.streams), Speech())
    frames = case.lookahead + 1
    sound = np.random.default_rng(0).standard_normal(chunk_samples(frames)) * 3000
    pcm, speech_s = sound.astype(np.int16), frames * 0.08
    for streams in case.streams:
        took = []
        for chunk in range(CHUNKS + 1):
            parts = [Part(1 + slot, chunk * frames, pcm) for slot in range(streams)]
            cpu, began = time.process_time(), time.perf_counter()
            runner.encode(case.lookahead, parts).labels()
            took.append((time.process_time() - cpu, time.perf_counter() - began))
        yield row(case, streams, took[1:], speech_s, memory, int8.value if int8 else "")


def measure_voice(case: Case) -> Iterator[dict[str, Any]]:
    """Yields a row of a voice for each number of streams."""
    import torch

    from offhook.pipeline.engines.pocket.model.published import random_model
    from offhook.pipeline.engines.pocket.runner import PocketRunner
    from offhook.pipeline.engines.shared.model.int8 import instructions

    torch.set_num_threads(case.threads)
    int8 = instructions() if case.precision == "int8" else None
    model = random_model(VOICES[case.model], int8=int8)
    memory = {"peak_mb": peak_resident_mb(), "mb": resident_mb()}
    runner = PocketRunner(model, max(case.streams))
    runner.warm_up()
    tokens = list(range(1, 31))
    for streams in case.streams:
        began = time.perf_counter()
        for number in range(streams):
            runner.begin(number, model.voice(), tokens, seed=number)
        runner.step(range(streams))
        first_ms = 1000 * (time.perf_counter() - began)
        took = []
        for _ in range(VOICE_FRAMES):
            cpu, began = time.process_time(), time.perf_counter()
            runner.step(range(streams))
            took.append((time.process_time() - cpu, time.perf_counter() - began))
        measured = row(case, streams, took, 0.08, memory, int8.value if int8 else "")
        yield measured | {"first_sound_ms": round(first_ms)}


def row(
    case: Case,
    streams: int,
    took: Sequence[tuple[float, float]],
    speech_s: float,
    memory: dict[str, int],
    instructions: str,
) -> dict[str, Any]:
    """Returns a row. `took` are the CPU seconds and the seconds of parts of `speech_s` each."""
    cpu, elapsed = np.median(took, axis=0)
    return {
        "model": case.model,
        "precision": case.precision,
        "threads": case.threads,
        "streams": streams,
        "cpu_per_s": round(cpu / speech_s / streams, 3),
        "of_real_time": round(elapsed / speech_s, 3),
        **memory,
        "instructions": instructions,
        "first_sound_ms": None,
    }


def peak_resident_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def resident_mb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
