"""`offhook bench sherpa`: Nemotron's network by sherpa-onnx, to compare with ours.

The network has its real size, 8-bit weights are random, and nothing is said: compare with
`offhook bench cpu --models nemotron --precisions int8`, whose labels cost a little beside. Columns
as there: CPU seconds of one core per second of speech and stream, and the share of real time that
a chunk takes.
"""

import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.command import command
from benchmarks.recognition import sherpa_graph
from benchmarks.table import Table, progress
from offhook.media.pcm import RATE_IN
from offhook.pipeline.engines.sherpa.model import SherpaStreams
from offhook.pipeline.engines.sherpa.model_files import read_model

COLUMNS = "threads streams cpu_per_s of_real_time peak_mb"


def main(argv: Sequence[str]) -> int:
    parser = command("sherpa", __doc__)
    parser.add_argument("--frames", type=int, default=7, help="frames of 80 ms in a chunk")
    parser.add_argument("--layers", type=int, default=sherpa_graph.LAYERS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--streams", type=int, nargs="+", default=(1, 4, 8))
    parser.add_argument("--chunks", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="keep the model here, or use it from here")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        if not (folder / "tokens.txt").is_file():
            progress("writing the model")
            sherpa_graph.nemotron(folder, options.frames, options.layers)
        model = SherpaStreams(read_model(folder, "nemotron"), options.threads)
        note = f"{model.model.describe()}, {options.layers} layers, random weights"
        table = Table("sherpa", note, COLUMNS, options.json)
        for count in options.streams:
            table.row(threads=options.threads, **measure(model, count, options.chunks))
    return 0


def measure(model: SherpaStreams, count: int, chunks: int) -> dict[str, float]:
    """Returns the row of so many streams together."""
    chunk_s = model.model.chunk_ms / 1000
    samples = int(((chunks + 1) * chunk_s + model.model.tail_ms / 1000) * RATE_IN)
    pcm = (np.random.default_rng(0).standard_normal(samples) * 3000).astype(np.int16)
    streams = [model.open() for _ in range(count)]
    for stream in streams:
        model.feed(stream, pcm)
    took = []
    for _ in range(chunks + 1):
        cpu, began = time.process_time(), time.perf_counter()
        model.decode(streams)
        took.append((time.process_time() - cpu, time.perf_counter() - began))
    cpu, elapsed = np.median(took[1:], axis=0)
    return {
        "streams": count,
        "cpu_per_s": round(cpu / chunk_s / count, 3),
        "of_real_time": round(elapsed / chunk_s, 3),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
