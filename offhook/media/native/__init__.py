"""The compiled path of a packet, where it was built: `make run` does, if there is a C compiler.

Whatever it computes, a Python class beside it computes too: that is the specification, and serves
where nothing was compiled, or with OFFHOOK_COMPILED=0 in the environment. Both give the same
samples, counters and packets.
"""

import os

try:
    from offhook.media.native._native import (
        CONSTANTS,
        Fir,
        G711Decoder,
        G711Encoder,
        G722Decoder,
        G722Encoder,
        History,
        Inbound,
        JitterBuffer,
        MediaReader,
        MediaWriter,
        OpusDecoder,
        OpusEncoder,
        Packetizer,
        Port,
        Ports,
        Receiver,
        ReceiverStats,
        Reception,
        Sender,
        SharedPort,
        Srtp,
        mean_square,
        mix_unlimited,
        read_stream,
        request_times,
        use_types,
        write_stream,
    )
except ImportError:
    BUILT = False
    """Whether the compiled module is there."""
else:
    BUILT = True

SWITCH = "OFFHOOK_COMPILED"

used = BUILT and os.environ.get(SWITCH) != "0"
"""Whether streams that begin now take the compiled path."""


def description() -> str:
    """The path that packets take, for `offhook doctor`."""
    if used:
        return "compiled"
    if BUILT:
        return f"in Python, as {SWITCH}=0 demands"
    return "in Python, which costs more: nothing was compiled when offhook was installed"


__all__ = [
    "BUILT",
    "CONSTANTS",
    "SWITCH",
    "Fir",
    "G711Decoder",
    "G711Encoder",
    "G722Decoder",
    "G722Encoder",
    "History",
    "Inbound",
    "JitterBuffer",
    "MediaReader",
    "MediaWriter",
    "OpusDecoder",
    "OpusEncoder",
    "Packetizer",
    "Port",
    "Ports",
    "Receiver",
    "ReceiverStats",
    "Reception",
    "Sender",
    "SharedPort",
    "Srtp",
    "description",
    "mean_square",
    "mix_unlimited",
    "read_stream",
    "request_times",
    "use_types",
    "used",
    "write_stream",
]
