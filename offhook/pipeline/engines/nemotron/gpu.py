"""Divides the memory of a GPU for Nemotron. Nothing here asks a device."""

from pathlib import Path

from offhook.pipeline.engines.nemotron.model import checkpoint
from offhook.pipeline.engines.nemotron.model.model import Nemotron, NemotronConfig
from offhook.pipeline.engines.shared.capacity import (
    GRAPH_BYTES,
    MAX_FILES,
    MIB,
    WORKSPACE_SHARE,
    too_little,
)
from offhook.pipeline.engines.shared.reckoned import ModelSize, read_config, weights_bytes

MAX_LABEL_STREAMS = 8192
"""Maximum live Nemotron streams, however much memory there is; further ones are refused with
EngineOverloaded."""
LABEL_FRAMES = 1792
"""Encoder frames of the largest Nemotron launch, each with a workspace of up to one MiB."""


def label_streams(room: int, c: NemotronConfig, most: int = 0) -> int:
    """Returns the live Nemotron streams that fit in `room` bytes beside the weights and MAX_FILES
    files, at most `most` (0: as many as fit). Raises EngineError if not even one fits."""
    e = c.encoder
    caches = e.layers * (2 * c.ring + e.conv_kernel - 1) * e.hidden_size
    heard = c.predictor_size * (max(c.lookaheads) + 2 + 2 * c.predictor_layers)
    each = 2 * (caches + heard)  # in 16 bits
    # On a small GPU the largest launches do without; those that do not fit are left out.
    workspace = 50 * GRAPH_BYTES + min(LABEL_FRAMES * MIB, int(WORKSPACE_SHARE * room))
    streams = (room - workspace) // each - MAX_FILES
    streams = min(most or MAX_LABEL_STREAMS, MAX_LABEL_STREAMS, streams)
    if streams < 1:
        raise too_little(room, workspace + (MAX_FILES + 1) * each)
    return streams


def size(model: str) -> ModelSize:
    """Returns what a model takes of a GPU. Raises EngineError."""
    if read_config(model):
        c = checkpoint.read_config(Path(model).expanduser())
    else:
        c = checkpoint.NEMOTRON_3_5_0_6B if "3.5" in model else checkpoint.NEMOTRON_0_6B
    return ModelSize(weights_bytes(lambda: Nemotron(c)), lambda room: label_streams(room, c))
