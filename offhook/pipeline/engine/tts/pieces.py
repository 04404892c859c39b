"""How many frames of a stream go through the codec at once.

Few launches of many frames cost the device less, but what waits for more frames is not heard: a
stream that has just begun is given frame by frame, and one with a lead four at a time. Files get
the most there is.
"""

from offhook.pipeline.engine.tts.messages import FRAME_S, PIECE_FRAMES

SAFE = 0.1
"""s of sound that a listener should still have when more of it is told: for a step and the codec,
and for whoever takes it to him."""
MOST = PIECE_FRAMES[-1]
_WAITING = range(1, MOST + 1)
_WHOLE = (0, *(max(n for n in PIECE_FRAMES if n <= waiting) for waiting in _WAITING))
_ENOUGH = (0, *(min(n for n in PIECE_FRAMES if n >= waiting) for waiting in _WAITING))
_NEXT = (
    0,
    *(min((n for n in PIECE_FRAMES if n > waiting), default=0) for waiting in _WAITING),
)


def is_due(waiting: int, lead: float, live: bool) -> bool:
    """Whether frames that wait for the codec should go. `lead`: s until all the sound of the
    stream, theirs too, will be over. They wait for more if, made no faster than they are heard,
    more come in time."""
    if waiting >= MOST:
        return True
    return live and lead < _NEXT[waiting] * FRAME_S + SAFE


def whole(waiting: int) -> int:
    """Frames of the largest piece."""
    return _WHOLE[waiting] if waiting < MOST else MOST


def enough(waiting: int) -> int:
    """Frames of the smallest piece that holds all that wait, or the largest there is."""
    return _ENOUGH[waiting] if waiting < MOST else MOST
