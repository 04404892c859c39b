"""What a file's decoder and the process that started it say: see `decoder_host_io`."""

import struct

REQUEST_BYTES = 1 << 12
"""Maximum size of a request, of the answer to it, and of the reason why a file cannot be decoded;
of its file's name and of the reason the rest is cut off."""
HEAD = struct.Struct("<BI")
"""Of a message: its kind and the length of what follows."""
SOUND, END, REFUSED, TOO_LONG = range(4)
"""Kinds of messages: `BLOCK` and samples; the end, `FAULTS`; why the file cannot be decoded; that
it is too long."""
FAULTS = struct.Struct("<II")
"""How many packets could not be decoded, and how many blocks were."""
BLOCK = struct.Struct("<Id")
"""Rate in Hz and the file's length in s, negative if it is not known."""
STATUS = struct.Struct("<i")
"""How a child has ended: its exit status, or the negative number of a signal."""
STARTED = b"+"
"""Answer to a request; anything else is why the child could not be started."""
MESSAGE_BYTES = 1 << 16
"""Samples are sent when there are so many bytes of them."""
