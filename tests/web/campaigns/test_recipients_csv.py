"""Files of recipients as spreadsheets write them, and as nobody should: what is wrong is named with
its line and column."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.campaigns.errors import CampaignError
from offhook.web.campaigns.recipients import (
    MAX_RECIPIENTS,
    check_number,
    number_key,
    recipients_of,
)
from offhook.web.campaigns.recipients_csv import MAX_CSV_BYTES, recipients_in

FILE = """number,id,time_zone,name,order
+49 30 123456,a,Europe/Berlin,Ada,17
0049 30 123457,b,,"Babbage, Charles",18
"""


def rows(data: bytes) -> list[tuple[str, str, str, dict[str, str]]]:
    return [(r.number, r.id, r.time_zone, r.variables) for r in recipients_in(data)]


EXPECTED = [
    ("+49 30 123456", "a", "Europe/Berlin", {"name": "Ada", "order": "17"}),
    ("0049 30 123457", "b", "", {"name": "Babbage, Charles", "order": "18"}),
]


@pytest.mark.parametrize(
    "data",
    [
        FILE.encode(),
        FILE.encode("utf-8-sig"),
        FILE.encode("utf-16"),
        FILE.replace("\n", "\r\n").encode(),
        FILE.replace("\n", "\r\n\r\n").encode(),
        FILE.replace(",", ";").replace("Babbage;", "Babbage,").encode(),
        FILE.replace(",", "\t").replace("Babbage\t", "Babbage,").encode(),
        FILE.replace("number", " NUMBER ").encode(),
        FILE.encode() + b",,,,\n",
    ],
)
def test_what_spreadsheets_write_is_read(data: bytes) -> None:
    assert rows(data) == EXPECTED


def test_the_number_is_the_id_of_whoever_has_none() -> None:
    [first, second] = recipients_in(b"number\n+49 (30) 123456\n0049-30-123456\n")
    assert first.id == second.id == "+4930123456"


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "line 1: no column is called number"),
        (b"number\n", "line 2: there is no recipient"),
        (b"phone,name\n1,2\n", r"line 1: no column is called number \(there: phone, name\)"),
        (b"number,name,name\n", "line 1, column 3: 'name' is the name of column 2 too"),
        (b"number,Number\n", "line 1, column 2: 'number' is the name of column 1 too"),
        (b"number,,x\n", "line 1, column 2: the header has no name for it"),
        (b"number,na\x07me\n", "line 1, column 2: the header has no name for it"),
        (b"number,name\n+4930123,A\n+4930124\n", "line 3: has 1 columns, and the header 2"),
        (b"name,number\nA,hello\n", r"line 2, column 2 \(number\): 'hello' is no number"),
        (b"name,number\nA,=1+1\n", r"line 2, column 2 \(number\): '=1\+1' is no number"),
        (b"number\n4.93E+11\n", "line 2, column 1 .*: a spreadsheet has made '4.93E.11' of it"),
        (b"number\n+1\n", "line 2, column 1"),
        (b"number\n" + b"1" * 400 + b"\n", "line 2, column 1"),
        (b"number\nsip:ann@example.org\r\nsip:\n", "line 3, column 1"),
        (b"number,time_zone\n+4930123,CET1\n", r"line 2, column 2 \(time_zone\): 'CET1' is no"),
        (b"number,id\n+4930123," + b"x" * 200 + b"\n", r"line 2, column 2 \(id\)"),
        (b"number,x\n+4930123," + b"x" * 3000 + b"\n", r"line 2, column 2 \(x\): is over 2000"),
        (b'number,x\n+4930123,"a\n', "line 2: unexpected end"),
        (b'number,x\n+4930123,"a"b\n', "line 2: "),
        (b"number,x\n+4930123,\xff\n", "line 2, column 2: is no text in UTF-8"),
        (b"number,name\n+4930123,Stra\xdfe\n", "save the file as CSV UTF-8"),
        (b"number\n+4930123\x00\n", "line 2, column 1: a NUL is no text"),
        (b"\xff\xfen\x00\x00\xd8", "UTF-16"),
        (b"PK\x03\x04\x00\x00", "a NUL is no text; is this a CSV file"),
        (b",".join(b"c%d" % n for n in range(99)) + b"\n", "99 columns are more than"),
        (b"number,x\n+4930123," + b"y" * 200_000 + b"\n", "line 2: field larger"),
        (b"number\n" + b"+4930123\n" * 1_200_000, "over 8 MiB"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(data: bytes, fault: str) -> None:
    with pytest.raises(CampaignError, match=fault):
        recipients_in(data)


def test_lines_are_counted_as_editors_do() -> None:
    """Also where a cell goes over several."""
    with pytest.raises(CampaignError, match="line 5, column 1"):
        recipients_in(b'number,x\n+4930123,"a\nb\nc"\nbad,1\n')


def test_too_many_are_refused() -> None:
    data = b"number\n" + b"".join(b"%08d\n" % n for n in range(MAX_RECIPIENTS + 1))
    assert len(data) < MAX_CSV_BYTES
    with pytest.raises(CampaignError, match="are more than 100000"):
        recipients_in(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_recipients_or_a_fault(data: bytes) -> None:
    fault = "line "
    try:
        assert recipients_in(b"number,x\n" + data)
    except CampaignError as error:
        fault = str(error)
    assert fault.startswith("line ")


texts = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=30)


@given(st.lists(st.tuples(st.from_regex(r"\+[1-9][0-9]{6,12}", fullmatch=True), texts), min_size=1))
def test_what_a_program_writes_comes_back(cells: list[tuple[str, str]]) -> None:
    file = io.StringIO()
    csv.writer(file).writerows([("number", "a name"), *cells])
    found = [
        (r.number, r.variables.get("a name", "")) for r in recipients_in(file.getvalue().encode())
    ]
    assert found == [(number, text.strip()) for number, text in cells]


# --- numbers ---


@pytest.mark.parametrize(
    "number",
    ["+49 30 123456", "0049 (30) 12-34-56", "004930123456", "tel:+4930123456", "'+4930123456"],
)
def test_all_ways_of_writing_a_number_have_one_key(number: str) -> None:
    assert number_key(check_number(number)) == "+4930123456"


@pytest.mark.parametrize("number", ["4711", "*69#", "sip:ann@example.org", "SIPS:a@b"])
def test_extensions_and_addresses_are_numbers(number: str) -> None:
    assert check_number(number) == number


@pytest.mark.parametrize(
    "number", [None, 49, "", "1", "ann", "+", "+49\n30", "sip:a b@c", "1" * 21]
)
def test_what_is_no_number(number: object) -> None:
    with pytest.raises(CampaignError, match="number: "):
        check_number(number)


@pytest.mark.parametrize(
    ("listed", "fault"),
    [
        (None, "recipients: a list is wanted"),
        ([], "recipients: a list is wanted"),
        ([1], "recipients.0: an object"),
        ([{"number": "4711"}, {}], "recipients.1.number: a text is wanted"),
        ([{"number": "4711", "name": "Ada"}], "recipients.0: name: is unknown"),
        ([{"number": "4711", "variables": [1]}], "recipients.0.variables: an object"),
        ([{"number": "4711", "time_zone": 1}], "recipients.0.time_zone: a name"),
        ([{"number": "4711", "id": "a\nb"}], "recipients.0.id: a text"),
    ],
)
def test_lists_of_json(listed: object, fault: str) -> None:
    with pytest.raises(CampaignError, match=fault):
        recipients_of(listed)
