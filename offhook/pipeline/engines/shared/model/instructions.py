"""How a CPU multiplies 8-bit numbers; see `shared.model.int8`. Imports no torch."""

import os
from collections.abc import Mapping
from enum import Enum


class Instructions(Enum):
    """How the CPU multiplies 8-bit numbers."""

    VNNI = "VNNI"
    """Products of 8-bit numbers are summed in 32 bits in one instruction."""
    AVX = "AVX without VNNI"
    """Pairs of products are summed in 16 bits first: inputs have 7 bits, so that no sum
    overflows."""
    OTHER = "QNNPACK"
    """Anything else, such as ARM."""


WITHOUT_VNNI = ("SSE41", "AVX", "AVX2", "AVX512_CORE")
"""Values of ONEDNN_MAX_CPU_ISA, which restricts oneDNN, the library below torch."""


def instructions_of(has: Mapping[str, object]) -> Instructions:
    """Returns what oneDNN uses on a CPU with these capabilities, by Linux's names of them (which
    are torch's): "avx2", "avx512_vnni", "avx_vnni"."""
    if not has.get("avx2"):
        return Instructions.OTHER
    vnni = has.get("avx512_vnni") or has.get("avx_vnni")
    masked = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in WITHOUT_VNNI
    return Instructions.VNNI if vnni and not masked else Instructions.AVX
