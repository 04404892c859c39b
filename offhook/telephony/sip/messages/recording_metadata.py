"""What a recording client says of the call that it sends: who takes part, and who sends which
stream (RFC 7865).

The XML comes from outside and is read without document types, so that no entity is expanded, and
within limits. Elements and attributes that are not needed, such as extensions, are skipped; the
ids of the drafts before the RFC (`id` for `participant_id`, streams within participants) are read
as well, since session border controllers send them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar
from xml.parsers import expat

from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.message import Message
from offhook.telephony.sip.messages.multipart import part_of
from offhook.telephony.sip.messages.uri import Uri

CONTENT_TYPE = "application/rs-metadata+xml"
_T = TypeVar("_T")

MAX_ELEMENTS = 2_000
"""Maximum elements of the metadata of a recorded call; a request with more is refused with 400. A
call of two people has about 20."""
MAX_DEPTH = 16
"""Maximum depth of nested elements of the metadata; a request with more is refused with 400."""
MAX_TEXT = 256
"""Maximum characters of a name, an address or an id in the metadata; the rest is cut off."""
MAX_KNOWN = 200
"""Maximum participants, streams and sessions of a recorded call that are remembered through its
changes, those that came last."""
NAMESPACE = "urn:ietf:params:xml:ns:recording"
"""That of the RFC ends with ":1", those of its drafts do not."""


class MetadataError(SipError):
    """The metadata cannot be read; the message says why."""


@dataclass(frozen=True)
class Participant:
    """Somebody who takes part in the recorded call."""

    id: str
    aor: str = ""
    """Address of record: a sip: or tel: URI."""
    name: str = ""

    @property
    def number(self) -> str:
        """The telephone number, or else the address without its scheme."""
        try:
            uri = Uri.parse(self.aor)
        except SipError:
            return self.aor
        return uri.number or uri.host


@dataclass(frozen=True)
class Metadata:
    """One snapshot of a recorded call, or with `partial` a change to the one before."""

    partial: bool = False
    sessions: tuple[str, ...] = ()
    """Ids of the communication sessions, the calls that are recorded."""
    participants: Mapping[str, Participant] = field(default_factory=dict)
    """By id, in the order of the document."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Label in the SDP → id of the stream."""
    senders: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Id of a participant → ids of the streams with what that participant says."""

    def updated(self, change: "Metadata") -> "Metadata":
        """Return what is known after `change`: all of it if that is a complete snapshot."""
        if not change.partial:
            return change
        return replace(
            self,
            sessions=tuple(dict.fromkeys((*self.sessions, *change.sessions)))[-MAX_KNOWN:],
            participants=_merged(self.participants, change.participants),
            labels=_merged(self.labels, change.labels),
            senders=_merged(self.senders, change.senders),
        )

    def sender(self, label: str) -> Participant | None:
        """Return who is heard in the stream with this label; None if that is not known."""
        stream = self.labels.get(label)
        senders = (one for one, streams in self.senders.items() if stream in streams)
        return next((self.participants[one] for one in senders if one in self.participants), None)

    def parties(self, labels: Sequence[str]) -> list[Participant]:
        """Return the participants, those first who send the streams with these labels."""
        heard = [self.sender(label) for label in labels]
        return list(dict.fromkeys(one for one in (*heard, *self.participants.values()) if one))


def _merged(known: Mapping[str, _T], change: Mapping[str, _T]) -> dict[str, _T]:
    return dict(list({**known, **change}.items())[-MAX_KNOWN:])


def metadata_of(message: Message) -> Metadata | None:
    """Return the metadata in a message; None if it has none. Raises MetadataError."""
    xml = part_of(message.headers.get("Content-Type") or "", message.body, CONTENT_TYPE)
    return None if xml is None else read_metadata(xml)


def read_metadata(xml: bytes) -> Metadata:
    """Read a document. Raises MetadataError."""
    reader = _Reader()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler = _refuse_document_type
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    try:
        parser.Parse(xml, True)
    except (expat.ExpatError, ValueError, LookupError) as error:  # the latter: of the encoding
        if isinstance(error, MetadataError):
            raise
        raise MetadataError(f"the metadata are not XML: {error}") from error
    return reader.metadata()


def _refuse_document_type(*declaration: object) -> None:
    raise MetadataError("the metadata have a document type")


@dataclass
class _Element:
    name: str
    """Without its namespace."""
    attributes: dict[str, str]
    text: str = ""
    children: list["_Element"] = field(default_factory=list)

    def all(self, name: str) -> Iterator["_Element"]:
        return (child for child in self.children if child.name == name)

    def word(self, name: str) -> str:
        """The text of the first child of that name."""
        return next((child.text.strip() for child in self.all(name)), "")

    def id(self, name: str) -> str:
        """An id, by its name of the RFC or of the drafts."""
        return self.attributes.get(f"{name}_id") or self.attributes.get("id", "")


class _Reader:
    """Builds the tree of a document."""

    def __init__(self) -> None:
        self._open: list[_Element] = []
        self._root: _Element | None = None
        self._count = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > MAX_ELEMENTS or len(self._open) == MAX_DEPTH:
            what = "elements" if self._count > MAX_ELEMENTS else "levels of elements"
            limit = MAX_ELEMENTS if self._count > MAX_ELEMENTS else MAX_DEPTH
            raise MetadataError(f"the metadata have more than {limit} {what}")
        namespace, _, local = name.rpartition(" ")
        values = {key.rpartition(" ")[2]: value[:MAX_TEXT] for key, value in attributes.items()}
        element = _Element(local, values)
        if self._open:
            self._open[-1].children.append(element)
        elif local != "recording" or not namespace.startswith(NAMESPACE):
            raise MetadataError(f"the metadata are not a recording of {NAMESPACE}:1")
        else:
            self._root = element
        self._open.append(element)

    def end(self, name: str) -> None:
        self._open.pop()

    def text(self, text: str) -> None:
        element = self._open[-1]
        element.text += text[: MAX_TEXT - len(element.text)]

    def metadata(self) -> Metadata:
        root = self._root
        assert root is not None  # expat refuses a document without an element
        senders: dict[str, frozenset[str]] = {}
        for one in (*root.all("participantstreamassoc"), *root.all("participant")):
            sent = frozenset(filter(None, (send.text.strip() for send in one.all("send"))))
            if sent:
                senders[one.id("participant")] = senders.get(one.id("participant"), sent) | sent
        streams = [(stream.word("label"), stream.id("stream")) for stream in root.all("stream")]
        participants = [_participant(one) for one in root.all("participant")]
        return Metadata(
            partial=(root.word("datamode") or root.word("dataMode")).lower() == "partial",
            sessions=tuple(filter(None, (one.id("session") for one in root.all("session")))),
            participants={one.id: one for one in participants if one.id},
            labels={label: stream for label, stream in streams if label and stream},
            senders=senders,
        )


def _participant(element: _Element) -> Participant:
    name = next(element.all("nameID"), _Element("nameID", {}))
    aor = name.attributes.get("aor", "")
    return Participant(element.id("participant"), aor, name.word("name"))
