"""What a language model may do with its call, as tools: functions that Pipecat hands to the model
by name, signature and docstring.

Each waits until the words said before it have been heard; an interruption until then voids it, as
Pipecat cancels a tool that is interrupted. What fails comes back to the model as a result.
"""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any

from loguru import logger
from pipecat.frames.frames import FunctionCallResultProperties
from pipecat.services.llm_service import FunctionCallParams

from offhook.media.leg import LegError
from offhook.pipeline.conversation.agents.agent_faults import Action, Fault, Limits, Place
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.digits import INTER_KEY_ASKED_MS, GatherOptions

Tool = Callable[..., Awaitable[None]]

ANYWHERE = ("*",)
WITH_YOU = (
    "people are being called, and the caller stays with you: go on with the conversation, without "
    "a goodbye. The caller is connected by itself once somebody accepts."
)
"""What the model is told where it keeps the caller company."""
_NOT_AGAIN = FunctionCallResultProperties(run_llm=False)
"""The model is not queried again until the caller has spoken."""


def call_tools(
    call: Call,
    transfers: Sequence[str] = ANYWHERE,
    seconds: float = Limits.tool_seconds,
) -> list[Tool]:
    """`seconds`: within which each has done what it does, but for a transfer, which rings.

    `transfers`: where to the model may transfer, as numbers or addresses or patterns of them
    ("+4930*"): callers can talk a model into much, and calls to some numbers cost money."""
    tools: list[Tool] = [end_call_tool(call), gather_digits_tool(call)]
    is_phone = call.leg.info.edge != "webrtc"  # a browser's line can do none of it
    if is_phone:
        tools += [
            tool(call, seconds) for tool in (send_dtmf_tool, hold_call_tool, resume_call_tool)
        ]
    if transfers and (is_phone or any(_allowed(n, transfers) for n in call.leg.destinations)):
        tools.append(transfer_call_tool(call, transfers))
    return [_checked(tool, call) for tool in tools]


def _checked(tool: Tool, call: Call) -> Tool:
    """Returns a tool that tells the model which of its arguments are invented or missing."""

    @wraps(tool)
    async def run(params: FunctionCallParams, **arguments: Any) -> None:
        try:
            inspect.signature(tool).bind(params, **arguments)
        except TypeError as error:
            name, why = params.function_name, str(error)
            logger.warning("{}: the model calls {}, and learns: {}", call.leg.call_id, name, why)
            cause = f"{name}: {why}"
            call.agent_failed(Fault.TOOL_FAILED, Place.TOOL, Action.TELL_MODEL, cause)
            await params.result_callback({"error": why})
        else:
            await tool(params, **arguments)

    return run


def end_call_tool(call: Call) -> Tool:
    async def end_call(params: FunctionCallParams) -> None:
        """End the phone call. Say goodbye first; use only when the caller is done."""
        await call.wait_until_heard()  # whoever interrupts the goodbye is not done
        await params.result_callback({"status": "the call has ended"}, properties=_NOT_AGAIN)
        await call.hang_up()

    return end_call


def transfer_call_tool(call: Call, transfers: Sequence[str]) -> Tool:
    async def transfer_call(params: FunctionCallParams, target: str) -> None:
        """Transfer the caller to somebody else. Say first that you do; your part of the call is
        over when it succeeds.

        Args:
            target: The telephone number, SIP address or name to transfer to.
        """
        await call.wait_until_heard()
        target = str(target).strip()  # models write numbers without quotes
        try:
            if not _allowed(target, transfers):
                raise LegError("transfers to this target are not allowed")
            if target in call.leg.accompanied:
                call.leg.accompanied[target]()
            else:
                await call.transfer(target)
        except LegError as error:
            await params.result_callback({"error": f"not transferred: {error}"})
        else:
            if target in call.leg.accompanied:
                await params.result_callback({"status": WITH_YOU})
            else:
                await params.result_callback({"status": "transferred"}, properties=_NOT_AGAIN)

    if named := [name for name in call.leg.destinations if _allowed(name, transfers)]:
        words = f"or name to transfer to. The names are: {', '.join(named)}."
        transfer_call.__doc__ = str(transfer_call.__doc__).replace("or name to transfer to.", words)
    return transfer_call


def _allowed(target: str, transfers: Sequence[str]) -> bool:
    """By the digits alone where it is a number: spaces and dashes make no other number of it."""
    if re.fullmatch(r"\+?[\d\s().-]+", target):
        target = re.sub(r"[^\d+]", "", target)
    return any(fnmatchcase(target, pattern) for pattern in transfers)


def send_dtmf_tool(call: Call, seconds: float) -> Tool:
    async def send_dtmf(params: FunctionCallParams, digits: str) -> None:
        """Press keys of the telephone, as for a menu at the other end.

        Args:
            digits: The keys one after the other: 0-9, *, #, A-D; a comma waits half a second.
        """
        await call.wait_until_heard()
        await _report(call, params, _send(call, str(digits)), {"status": "sent"}, seconds)

    return send_dtmf


async def _send(call: Call, digits: str) -> None:
    call.leg.send_dtmf(digits)


def hold_call_tool(call: Call, seconds: float) -> Tool:
    async def hold_call(params: FunctionCallParams) -> None:
        """Put the caller on hold. Say first that you do: what you say afterwards is heard only
        when you have called resume_call."""
        await call.wait_until_heard()
        await _report(call, params, call.hold(), {"status": "on hold"}, seconds)

    return hold_call


def resume_call_tool(call: Call, seconds: float) -> Tool:
    async def resume_call(params: FunctionCallParams) -> None:
        """Take the caller back from hold."""
        done = {"status": "the caller hears you again"}
        await _report(call, params, call.resume(), done, seconds)

    return resume_call


async def _report(
    call: Call, params: FunctionCallParams, doing: Awaitable[None], done: Any, seconds: float
) -> None:
    try:
        async with asyncio.timeout(seconds):
            await doing
    except (LegError, TimeoutError) as error:
        call.agent_failed(Fault.TOOL_FAILED, Place.TOOL, Action.TELL_MODEL)
        done = {"error": str(error) or f"it took longer than {seconds:g} s"}
    await params.result_callback(done)


def gather_digits_tool(call: Call) -> Tool:
    async def gather_digits(
        params: FunctionCallParams, count: int = 0, finish_key: str = "#", secret: bool = False
    ) -> None:
        """Get keys from the caller: a number, a choice, a code. Say what to press; the keys come
        as the caller's next message. Without this tool keys come too, when none follows for a
        moment.

        Args:
            count: How many keys make the entry complete; 0 if that is not known.
            finish_key: The key that ends the entry; an empty string for none.
            secret: Whether it is a card number, a PIN or the like: nothing is recorded until the
                keys have come.
        """
        try:
            # Before the words are over: callers who know them do not wait for them.
            call.gather(GatherOptions(int(count or 0), str(finish_key or ""), INTER_KEY_ASKED_MS))
        except (TypeError, ValueError) as error:  # models write what they like
            await params.result_callback({"error": str(error)})
            return
        if secret:
            call.leg.recording.pause("agent", until_turn=True)
        asked = await call.wait_until_heard()
        result = {"status": "the keys come as the caller's next message, as [pressed 12#]"}
        if asked:
            await params.result_callback(result, properties=_NOT_AGAIN)
        else:
            await params.result_callback({**result, "next": "say what to press"})

    return gather_digits
