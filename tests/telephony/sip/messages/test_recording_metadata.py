"""The metadata of recorded calls: what is read of them, and what is refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.messages.recording_metadata import (
    MAX_DEPTH,
    MAX_ELEMENTS,
    MAX_KNOWN,
    Metadata,
    MetadataError,
    Participant,
    read_metadata,
)
from tests.telephony.sip.siprec.recording_client import CALLED, CALLER, XMLNS, metadata

LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
HOSTILE = {
    "billion laughs": f'<!DOCTYPE x [<!ENTITY l0 "ha">{LAUGHS}]><x>&l9;</x>',
    "an external entity": '<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><x>&f;</x>',
    "a document type alone": f'<!DOCTYPE recording><recording xmlns="{XMLNS}"/>',
    "an undefined entity": f'<recording xmlns="{XMLNS}">&nothing;</recording>',
    "no end": f'<recording xmlns="{XMLNS}"><session',
    "nothing": "",
    "text": "hello",
    "another root": f'<conference xmlns="{XMLNS}"/>',
    "another namespace": '<recording xmlns="urn:other"/>',
    "too many elements": f'<recording xmlns="{XMLNS}">{"<a/>" * MAX_ELEMENTS}</recording>',
    "too deep": f'<recording xmlns="{XMLNS}">{"<a>" * MAX_DEPTH}{"</a>" * MAX_DEPTH}</recording>',
    "an encoding that nobody has": '<?xml version="1.0" encoding="x-none"?><recording/>',
    "an encoding of many bytes": '<?xml version="1.0" encoding="utf-7"?><recording/>',
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_metadata_are_refused(what: str) -> None:
    with pytest.raises(MetadataError):
        read_metadata(HOSTILE[what].encode())


def test_bytes_of_another_encoding_than_declared_are_refused() -> None:
    xml = '<?xml version="1.0" encoding="UTF-8"?>' + metadata(CALLER, CALLED)
    with pytest.raises(MetadataError, match="not XML"):
        read_metadata(xml.encode("latin-1"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1", "windows-1252"])
def test_a_declared_encoding_is_read(encoding: str) -> None:
    xml = f'<?xml version="1.0" encoding="{encoding}"?>' + metadata(CALLER, CALLED)
    assert read_metadata(xml.encode(encoding)).participants["bob"].name == "Bob Müller"


def test_who_sends_which_stream() -> None:
    known = read_metadata(metadata(CALLER, CALLED, labels=("96", "97")).encode())
    ann, bob = known.sender("96"), known.sender("97")
    assert ann == Participant("ann", "sip:+4930111@pbx.example", "Ann")
    assert (ann.number, bob and bob.number) == ("+4930111", "+4930222")
    assert known.parties(("97", "96")) == [bob, ann]
    assert known.parties(("7",)) == [ann, bob]
    assert known.sessions == ("s1",)
    assert known.sender("7") is None


DRAFT = """<?xml version="1.0"?>
<recording xmlns='urn:ietf:params:xml:ns:recording'>
  <dataMode>complete</dataMode>
  <session id="hVpd7YQgRW2nD22h7q60JQ=="/>
  <participant id="srfBElmCRp2QB23b7Mpk0w==" session="hVpd7YQgRW2nD22h7q60JQ==">
    <nameID aor="tel:+15551234"><name xml:lang="it">RPB</name></nameID>
    <send>UAAMm5GRQKSCMVvLyl4rFw==</send>
  </participant>
  <stream id="UAAMm5GRQKSCMVvLyl4rFw==" session="hVpd7YQgRW2nD22h7q60JQ=="><label>1</label></stream>
</recording>"""


def test_metadata_of_the_drafts_are_read() -> None:
    known = read_metadata(DRAFT.encode())
    sender = known.sender("1")
    assert sender is not None
    assert (sender.number, sender.name) == ("+15551234", "RPB")
    assert not known.partial


def test_partial_metadata_change_what_they_name() -> None:
    known = read_metadata(metadata(CALLER, CALLED).encode())
    carol = ("carol", "+4930333", "Carol")
    change = read_metadata(metadata(carol, labels=("2",), mode="partial").encode())
    after = known.updated(change)
    assert [one.name for one in after.parties(("1", "2"))] == ["Ann", "Carol", "Bob Müller"]
    complete = read_metadata(metadata(carol, labels=("2",)).encode())
    assert [one.name for one in known.updated(complete).parties(("1", "2"))] == ["Carol"]


def test_what_is_known_stays_bounded() -> None:
    known = Metadata()
    for n in range(3 * MAX_KNOWN):
        known = known.updated(
            Metadata(
                partial=True,
                sessions=(f"s{n}",),
                participants={f"p{n}": Participant(f"p{n}")},
                labels={f"{n}": f"t{n}"},
                senders={f"p{n}": frozenset((f"t{n}",))},
            )
        )
    parts = known.participants, known.labels, known.senders, known.sessions
    assert {len(part) for part in parts} == {MAX_KNOWN}
    assert known.sender(f"{3 * MAX_KNOWN - 1}") == Participant(f"p{3 * MAX_KNOWN - 1}")


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for document in (data, f'<recording xmlns="{XMLNS}">'.encode() + data + b"</recording>"):
        with contextlib.suppress(MetadataError):
            read_metadata(document)


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_name_and_address_has_a_number(name: str, aor: str) -> None:
    assert isinstance(Participant("p", aor, name).number, str)
