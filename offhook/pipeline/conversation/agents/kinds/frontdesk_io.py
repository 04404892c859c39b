"""Makes the front desk of a call."""

from offhook.pipeline.conversation.agents.agents_io import FrontDeskAgent
from offhook.pipeline.conversation.agents.frontdesk import Action, Hangup, StoreMessage, Transfer
from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentContext
from offhook.pipeline.conversation.agents.kinds.frontdesk import FRONTDESK
from offhook.pipeline.conversation.call_io import Agent
from offhook.pipeline.conversation.events import DetailNoted


def make(context: AgentContext) -> Agent:
    call = context.call

    async def act(action: Action) -> None:
        context.log(action)
        if isinstance(action, Hangup):
            await call.hang_up()
        elif isinstance(action, Transfer):
            await call.transfer(action.to)
        else:
            note(action)

    def note(message: StoreMessage) -> None:
        """Has the record of the call have the message."""
        left = {"name": message.name, "number": message.number, "message": message.text}
        for name, text in left.items():
            if text:
                call.leg.collected[name] = text
                call.emit(DetailNoted(call.leg.heard_ms, name, text))

    desk = FrontDeskAgent(context.settings, act, call.wait_until_heard, call.leg.info.caller)
    return Agent(
        *(FRONTDESK.name, desk),
        on_cut=desk.cut,
        on_idle=desk.prompt,
        on_returned=desk.returned,
        dialog=desk.dialog,
        restore=desk.restore,
    )
