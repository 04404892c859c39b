"""Chooses how many frames of a stream pass through the codec at once.

Few launches of many frames use the device best, but waiting for more frames adds latency: a new
stream is decoded frame by frame, one with a lead four frames at a time, a file in the largest
pieces.
"""

from offhook.pipeline.engine.tts.messages import FRAME_S, PIECE_FRAMES

SAFE = 0.1
"""Audio in s that the listener should still have when more is delivered; covers a step, the codec
and the delivery."""
MOST = PIECE_FRAMES[-1]
_WAITING = range(1, MOST + 1)
_WHOLE = (0, *(max(n for n in PIECE_FRAMES if n <= waiting) for waiting in _WAITING))
_ENOUGH = (0, *(min(n for n in PIECE_FRAMES if n >= waiting) for waiting in _WAITING))
_NEXT = (
    0,
    *(min((n for n in PIECE_FRAMES if n > waiting), default=0) for waiting in _WAITING),
)


def is_due(waiting: int, lead: float, live: bool) -> bool:
    """Returns whether pending frames should be decoded now. `lead` is the time in s until the
    stream's audio, including these frames, runs out. They wait for more if those arrive in time
    even at real-time speed."""
    if waiting >= MOST:
        return True
    return live and lead < _NEXT[waiting] * FRAME_S + SAFE


def whole(waiting: int) -> int:
    """Returns the frames of the largest piece that can be filled."""
    return _WHOLE[waiting] if waiting < MOST else MOST


def enough(waiting: int) -> int:
    """Returns the frames of the smallest piece that holds all pending ones, or of the largest."""
    return _ENOUGH[waiting] if waiting < MOST else MOST
