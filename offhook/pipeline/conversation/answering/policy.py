"""What is done about who answers a call that we place."""

from dataclasses import dataclass

from offhook.media.answer_status import Mode


@dataclass(frozen=True)
class AnswerPolicy:
    """What is done about who answers."""

    mode: Mode
    message: str = ""
    """What is left on a machine."""
    on_machine: str = ""
    """Instructions of an agent that speaks to machines; "" if it hangs up."""
    on_screening: str = ""
    """What is said to a screening service; "" if the agent finds its own words."""
    has_model: bool = False
    """Whether the agent can be told what has answered."""
