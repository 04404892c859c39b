"""The responses of an agent that a program directs."""

from collections.abc import Callable

from pipecat.frames.frames import Frame

from offhook.pipeline.conversation.directed_io import Direction, ResponseRequest
from offhook.pipeline.conversation.turns.user_turn_io import UserTurnController


class Responses:
    """What the program asks for; one response at a time."""

    def __init__(
        self,
        direction: Direction | None,
        hearing: UserTurnController,
        queue: Callable[[Frame], None],
    ) -> None:
        """`direction` is the agent's, without which it cannot be asked; `queue` pushes a frame to
        it."""
        self._direction, self._hearing, self._queue = direction, hearing, queue

    def request(self, request: ResponseRequest) -> None:
        """Ask the agent for a response in place of any before."""
        assert self._direction is not None
        self._direction.wanted = request.response_id
        self._hearing.reply.busy = True
        self._queue(request)

    def cancel(self, response_id: str) -> None:
        """Stop generating and playing a response."""
        assert self._direction is not None
        self._direction.cancel(response_id)
        self._hearing.interrupt()

    def leave_unanswered(self) -> None:
        """Give the floor back after a turn that no response follows."""
        self._hearing.reply.busy = False
