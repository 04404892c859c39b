"""JSON that a peer, a client or a model has written: it may be anything."""

import json
from typing import Any


def read_json(text: str | bytes) -> Any:
    """Returns the value that a JSON text stands for. Raises ValueError if it is none, or one that
    is nested too deeply for Python's parser, which some hundred bytes can be."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error
