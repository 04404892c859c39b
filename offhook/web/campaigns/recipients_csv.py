"""Recipients as a CSV file, as spreadsheets write them."""

import csv
import io
from collections.abc import Iterator, Sequence

from offhook.web.campaigns.errors import CampaignError
from offhook.web.campaigns.recipients import MAX_VARIABLES, Recipient, check_count, recipient

MAX_CSV_BYTES = 8 << 20
"""Maximum bytes of a file of recipients; a larger one is refused with 400."""
DELIMITERS = ",;\t"
NUMBER, ID, TIME_ZONE = "number", "id", "time_zone"
MAX_COLUMNS = MAX_VARIABLES + 3
"""Maximum columns of a file; more are refused with 400."""
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def recipients_in(data: bytes) -> list[Recipient]:
    """Returns the recipients of a file: a row each, of which the column `number` is wanted, `id`
    and `time_zone` may be there, and all others are variables. Raises CampaignError, which names
    the line and the column."""
    lines = _rows(_text_of(data))
    line, header = next(lines, (1, []))
    names = _names(header, line)
    found = []
    for line, cells in lines:
        if len(cells) != len(names):
            raise CampaignError(
                f"line {line}: has {len(cells)} columns, and the header {len(names)}"
            )
        row = dict(zip(names, cells, strict=True))
        number, id, zone = (row.pop(name, "") for name in (NUMBER, ID, TIME_ZONE))
        variables = {name: value for name, value in row.items() if value}
        try:
            found.append(recipient(number, id, zone, variables))
        except CampaignError as error:
            name, _, why = str(error).partition(": ")
            place = names.index(name) + 1 if name in names else 0
            column = f", column {place} ({name})" if place else ""
            raise CampaignError(f"line {line}{column}: {why}") from error
    if not found:
        raise CampaignError("line 2: there is no recipient below the header")
    check_count(found)
    return found


def _text_of(data: bytes) -> str:
    """Raises CampaignError."""
    if len(data) > MAX_CSV_BYTES:
        raise CampaignError(f"the file has over {MAX_CSV_BYTES >> 20} MiB: append it in parts")
    encoding = "utf-16" if data.startswith(_UTF_16) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line, column = _place(data[: error.start].decode(encoding, "replace"))
        raise CampaignError(
            f"line {line}, column {column}: is no text in {encoding.removesuffix('-sig').upper()}; "
            "save the file as CSV UTF-8"
        ) from error
    if (at := text.find("\0")) >= 0:
        line, column = _place(text[:at])
        raise CampaignError(f"line {line}, column {column}: a NUL is no text; is this a CSV file?")
    return text


def _place(before: str) -> tuple[int, int]:
    """Returns the line, and the column of the table as far as it can be known."""
    lines = before.splitlines() or [""]
    header, last = lines[0], lines[-1]
    if before.endswith(("\n", "\r")):
        return len(lines) + 1, 1
    return len(lines), last.count(_delimiter(header)) + 1


def _delimiter(header: str) -> str:
    """Returns the one of DELIMITERS that the header has most of."""
    return max(DELIMITERS, key=header.count)


def _rows(text: str) -> Iterator[tuple[int, Sequence[str]]]:
    """Yields the rows that are not empty, each with the number of its first line. Raises
    CampaignError."""
    delimiter = _delimiter(text[: text.find("\n") + 1] or text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise CampaignError(f"line {line}: {error}") from error
        if any(cell.strip() for cell in cells):
            yield line, [cell.strip() for cell in cells]


def _names(header: Sequence[str], line: int) -> list[str]:
    """Raises CampaignError."""
    names: list[str] = []
    if len(header) > MAX_COLUMNS:
        raise CampaignError(f"line {line}: {len(header)} columns are more than {MAX_COLUMNS}")
    for place, written in enumerate(header, 1):
        name = written.lower() if written.lower() in (NUMBER, ID, TIME_ZONE) else written
        if not name or not name.isprintable():
            raise CampaignError(f"line {line}, column {place}: the header has no name for it")
        if name in names:
            first = names.index(name) + 1
            raise CampaignError(
                f"line {line}, column {place}: {name!r} is the name of column {first} too"
            )
        names.append(name)
    if NUMBER not in names:
        there = ", ".join(names)[:200] or "none"
        raise CampaignError(f"line {line}: no column is called number (there: {there})")
    return names
