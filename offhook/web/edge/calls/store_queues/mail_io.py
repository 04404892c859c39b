"""Sends messages of a voicemail by mail: one mail a message, with its words and its sound."""

import json
import smtplib
import ssl
from collections.abc import Callable
from contextlib import suppress
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from offhook.media.sealing.names import SUFFIX
from offhook.web.config.smtp import Smtp
from offhook.web.records.bucket.places import in_bucket
from offhook.web.records.errors import StoreError
from offhook.web.records.webhooks import Delivery

SCHEME = "mailto:"
"""What the address of a receiver begins with who gets mail."""
SMTP_S = 30.0
"""Time limit in s of each step with the mail server; then the mail is tried again later."""
MAX_ATTACHED_BYTES = 10_000_000
"""Largest recording that a mail has with it; of a larger one it says only that there is one."""


class Mailer:
    """Sends mail by one server. Blocks: for threads."""

    def __init__(self, settings: Smtp, show: Callable[[str], dict[str, Any] | None]) -> None:
        """`show` returns what is known of a call. Raises StoreError."""
        self._settings = settings
        self._show = show

    def send(self, address: str, delivery: Delivery) -> str:
        """Sends a message that waits; returns why that was not possible, "" if it was."""
        try:
            mail = self._mail(address, delivery)
            server = self._connection()
            try:
                server.send_message(mail)
                with suppress(OSError, smtplib.SMTPException):  # it has the mail
                    server.quit()
            finally:
                server.close()
        except (OSError, smtplib.SMTPException, StoreError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def _connection(self) -> smtplib.SMTP:
        s = self._settings
        context = ssl.create_default_context()
        if s.security == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(s.host, s.port, timeout=SMTP_S, context=context)
        else:
            server = smtplib.SMTP(s.host, s.port, timeout=SMTP_S)
        try:
            if s.security == "starttls":
                server.starttls(context=context)
            if s.username:
                server.login(s.username, s.password)
        except BaseException:
            server.close()
            raise
        return server

    def _mail(self, address: str, delivery: Delivery) -> EmailMessage:
        """Raises StoreError."""
        event = json.loads(delivery.body)
        data = event["data"]
        call = self._show(data["call_id"]) or {}
        who = " ".join(filter(None, (call.get("caller_name"), data["caller"]))) or "somebody"
        mail = EmailMessage()
        mail["Subject"] = f"Voicemail from {_line(who)}"
        mail["From"] = self._settings.sender
        mail["To"] = address
        mail["Message-ID"] = f"<{delivery.id}@offhook>"  # the same in all attempts
        words = data.get("text") or "(no words were understood)"
        mail.set_content(
            f"{_line(who)} has left a message of {data['seconds']:.0f} s for {data['mailbox']}, "
            f"{event['timestamp']}:\n\n{words}\n\nCall: {data['call_id']}\n"
        )
        sound = _sound_of(call.get("recording") or "")
        if sound:
            name = f"{data['call_id']}.ogg"
            mail.add_attachment(sound, maintype="audio", subtype="ogg", filename=name)
        return mail


def _sound_of(place: str) -> bytes:
    """Returns a recording that can be attached; empty if it is elsewhere, or encrypted."""
    if not place or in_bucket(place) or place.endswith(SUFFIX):
        return b""
    try:
        path = Path(place)
        return path.read_bytes() if path.stat().st_size <= MAX_ATTACHED_BYTES else b""
    except OSError:
        return b""


def _line(text: str) -> str:
    """Returns what a caller says about itself, fit for a header."""
    return "".join(c if c.isprintable() else " " for c in text)[:100]
