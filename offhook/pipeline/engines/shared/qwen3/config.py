"""Sizes of a Qwen3 decoder; without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offhook.pipeline.speech.errors import EngineError

CODEBOOKS = 16
"""Codebooks of a frame of speech; the random number counter of its draws reserves as many."""


@dataclass(frozen=True)
class DecoderConfig:
    hidden_size: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_eps: float = 1e-6
    rope_theta: float = 1e6

    @staticmethod
    def from_json(c: Mapping[str, Any]) -> "DecoderConfig":
        """Parses the decoder part of a config.json. Raises KeyError if a key is missing and
        EngineError for an unsupported kind of decoder."""
        require(c, "hidden_act", "silu")
        require(c, "attention_bias", False)
        require(c, "use_sliding_window", False)
        rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
        # The original layouts name their three identical position rows here.
        if rope.get("rope_type", "default") not in ("default", "mrope"):
            raise EngineError(f"config.json: rope_type {rope['rope_type']!r} is not supported")
        return DecoderConfig(
            hidden_size=c["hidden_size"],
            ffn=c["intermediate_size"],
            layers=c["num_hidden_layers"],
            heads=c["num_attention_heads"],
            kv_heads=c["num_key_value_heads"],
            head_dim=c["head_dim"],
            rms_eps=c["rms_norm_eps"],
            rope_theta=float(rope["rope_theta"] if "rope_theta" in rope else c["rope_theta"]),
        )


def require(config: Mapping[str, Any], name: str, value: object, file: str = "config.json") -> None:
    """Raises EngineError if the file sets `name` to another value; it may omit it."""
    if config.get(name, value) != value:
        raise EngineError(f"{file}: {name} is {config[name]!r}; only {value!r} is supported")
