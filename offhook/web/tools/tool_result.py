"""What a model is told that has come of a tool."""

import json
from collections.abc import Collection
from typing import Any

MAX_RESULT_CHARS = 16_000
"""Maximum characters of a result, as JSON; a longer one is an error, which the model is told."""


class ToolFailed(Exception):
    """Raised when a tool has no result; the message is for the model."""


def shown(result: Any, fields: Collection[str] = ()) -> dict[str, Any]:
    """Returns a result as the model sees it, a JSON object: of an object these fields, if any.
    Raises ToolFailed if none of them is there, or it is too long or no JSON."""
    if fields and isinstance(result, dict):
        result = {name: result[name] for name in fields if name in result}
        if not result:
            raise ToolFailed(f"the result has none of the fields {', '.join(fields)}")
    try:
        text = json.dumps(result, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolFailed("the result is no JSON") from error
    if len(text) > MAX_RESULT_CHARS:
        raise ToolFailed(f"the result has over {MAX_RESULT_CHARS} characters")
    # Pipecat does not ask the model again after a result that is false, such as an empty list.
    return result if isinstance(result, dict) and result else {"result": result}
