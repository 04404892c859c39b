"""XML documents that answer webhooks: what the providers that are answered so share."""

import re
from collections.abc import Mapping
from typing import ClassVar
from xml.etree.ElementTree import Element, SubElement, tostring

from offhook.media.answer_status import Result
from offhook.telephony.carriers.provider import Provider
from offhook.telephony.carriers.webhook import Reply, WebhookCall

XML = "application/xml"
RETRY_S = 1
"""Pause in s until a provider asks again."""

# XML 1.0 §2.2: characters not allowed in a document, not even escaped
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")


ANSWERED_BY: Mapping[str, Result] = {
    "human": "human",
    "machine_start": "machine",
    "machine_end_beep": "machine_end",
    "machine_end_silence": "machine_end",
    "machine_end_other": "machine_end",
    "fax": "fax",
    "unknown": "unknown",
}
"""Values of `AnsweredBy` in the webhooks of carriers that have this markup."""


def answered_by(report: WebhookCall) -> Result | None:
    """Return who has answered, if a webhook of these says so."""
    return ANSWERED_BY.get(report.parameters.get("AnsweredBy", ""))


class ContinuingProvider(Provider):
    """One that follows the rest of its document once our side closes the stream, and asks what to
    do next when a transfer has ended."""

    pause: ClassVar[str]
    """Its verb for waiting."""
    target_status: ClassVar[str]
    """Where its webhook has the status of the call to the target of a transfer."""
    asks = True
    continues = True
    reports = True

    def retry(self, url: str) -> Reply:
        return document(Element(self.pause, length=str(RETRY_S)), *redirects(url))

    def hang_up(self) -> Reply:
        return document(Element("Hangup"))

    def dial_status(self, report: WebhookCall) -> str:
        return report.parameters.get(self.target_status, "")

    def caller_status(self, report: WebhookCall) -> str:
        return report.event


def document(*elements: Element) -> Reply:
    """Return the response that consists of these verbs."""
    response = Element("Response")
    response.extend(elements)
    text = tostring(response, encoding="unicode", short_empty_elements=True)
    return Reply(XML, f'<?xml version="1.0" encoding="UTF-8"?>{text}')


def connect(stream: Mapping[str, str]) -> Element:
    """Return the verb that connects a call to a stream with these attributes."""
    verb = Element("Connect")
    SubElement(verb, "Stream", {name: xml_text(value) for name, value in stream.items()})
    return verb


def redirects(url: str) -> tuple[Element, ...]:
    """Return the verb that has the provider ask `url` what to do next, none for ""."""
    if not url:
        return ()
    verb = Element("Redirect", method="POST")
    verb.text = xml_text(url)
    return (verb,)


def xml_text(text: str) -> str:
    """Return a text without the characters that no XML document may have."""
    return _NOT_XML.sub("", text)
