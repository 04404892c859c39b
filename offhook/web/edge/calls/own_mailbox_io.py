"""The messages of an extension that calls to hear them, in the store."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from offhook.media.files.decoding_io import Decoding
from offhook.media.files.formats import FileError
from offhook.media.pcm import RATE_OUT, Pcm
from offhook.media.sealing.keyring import KeyFault
from offhook.media.sealing.sealed import SealFault
from offhook.pipeline.conversation.agents.mailbox.mailbox import MailboxFault, Message
from offhook.telephony.sip.trunks.extension import trunk_name
from offhook.web.config.config import Config
from offhook.web.edge.calls.records_io import CallRecords
from offhook.web.edge.calls.stored_sound_io import Sound
from offhook.web.records.errors import StoreError
from offhook.web.records.store import CallStore
from offhook.web.records.writing.writer_io import report_faults

MAX_PLAYED_S = 600
"""Limit in s of a message that is played by phone; the rest of a longer one is left out."""


class OwnMailbox:
    """A `Mailbox` of one extension."""

    def __init__(self, number: str, records: CallRecords, config: Callable[[], Config]) -> None:
        self._number, self._records, self._config = number, records, config

    async def messages(self) -> Sequence[Message]:
        """Returns the new ones first, and of each kind the oldest first."""
        found = await self._ask(self._store.voicemails.list, self._number)
        shown = [
            Message(
                one["call_id"],
                one["caller_name"] or one["caller"],
                datetime.fromisoformat(one["started"]),
                one["text"],
                one["heard"],
            )
            for one in reversed(found)
        ]
        return sorted(shown, key=lambda message: message.heard)

    async def listen(self, message: str) -> Pcm | None:
        await self._ask(
            self._store.look, message, "recording", trunk_name(self._number), time.time()
        )
        call = await self._ask(self._store.show, message)
        if call is None or not call["recording"]:
            return None
        sound = Sound(call["recording"], self._config().recording, self._records)
        try:
            stored = await sound.open()
            try:
                content = await sound.read(stored, 0, stored.length)
            finally:
                stored.close()
            return await asyncio.to_thread(_decoded, content)
        except (KeyFault, SealFault, FileError, ValueError, OSError) as fault:
            raise MailboxFault(str(fault)) from fault

    async def delete(self, message: str) -> None:
        await self._ask(self._forget, message)

    def _forget(self, message: str) -> None:
        """Blocks. Raises StoreError."""
        deletion, now = self._store.deletion, time.time()
        forgotten = deletion.forget_call(message, now)
        faults, _ = deletion.finish(forgotten, now, self._records.bucket)
        report_faults(faults)

    @property
    def _store(self) -> CallStore:
        """Raises MailboxFault."""
        if self._records.kept is None:
            raise MailboxFault("calls are not kept here: see [records] url")
        return self._records.kept.store

    async def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        async with self._records.looking:
            try:
                return await asyncio.to_thread(question, *arguments)
            except StoreError as fault:
                raise MailboxFault(str(fault)) from fault


def _decoded(content: bytes) -> Pcm:
    """Blocks. Raises FileError and OSError."""
    blocks: list[Pcm] = []
    with open(os.memfd_create("message"), "w+b") as file:  # what was sealed is on no disk
        file.write(content)
        file.seek(0)
        left = MAX_PLAYED_S * RATE_OUT
        for block, _, _ in Decoding(file, RATE_OUT, name="message.ogg").blocks():
            blocks.append(block[:left])
            left -= len(block)
            if left <= 0:
                break
    return np.concatenate(blocks) if blocks else np.zeros(0, np.int16)
