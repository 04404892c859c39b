"""Writes small PDFs."""

import zlib
from collections.abc import Sequence


def pdf(pages: Sequence[str], *, encrypted: bool = False) -> bytes:
    """Returns a PDF with these pages, in Latin-1, a line of text a line; "" is an empty page."""
    streams = [_content(text) for text in pages]
    kids = " ".join(f"{4 + 2 * at} 0 R" for at in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for at, stream in enumerate(streams):
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] "
            b"/Resources << /Font << /F1 3 0 R >> >> /Contents %d 0 R >>" % (5 + 2 * at)
        )
        packed = zlib.compress(stream)
        head = b"<< /Length %d /Filter /FlateDecode >>" % len(packed)
        objects.append(head + b"\nstream\n" + packed + b"\nendstream")
    return _file(objects, encrypted=encrypted)


def bomb(megabytes: int) -> bytes:
    """Returns a PDF of a few kB with a page that unpacks to so much, packed three times."""
    stream = b"BT /F1 9 Tf (x) Tj ET\n" * (megabytes * 1_000_000 // 22)
    for _ in range(3):
        stream = zlib.compress(stream, 9)
    filters = b"[/FlateDecode /FlateDecode /FlateDecode]"
    page = (
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] "
        b"/Resources << /Font << /F1 3 0 R >> >> /Contents 5 0 R >>"
    )
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    head = b"<< /Length %d /Filter %s >>" % (len(stream), filters)
    contents = head + b"\nstream\n" + stream + b"\nendstream"
    pages = b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>"
    return _file([b"<< /Type /Catalog /Pages 2 0 R >>", pages, font, page, contents])


def _content(text: str) -> bytes:
    lines = [b"BT /F1 11 Tf 72 770 Td 14 TL"]
    for line in text.split("\n") if text else ():
        safe = line.encode("latin-1", "replace")
        for sign in (b"\\", b"(", b")"):
            safe = safe.replace(sign, b"\\" + sign)
        lines.append(b"(" + safe + b") Tj T*")
    return b"\n".join([*lines, b"ET"])


def _file(objects: Sequence[bytes], *, encrypted: bool = False) -> bytes:
    written, places = bytearray(b"%PDF-1.4\n"), []
    for number, one in enumerate(objects, 1):
        places.append(len(written))
        written += b"%d 0 obj\n" % number + one + b"\nendobj\n"
    start = len(written)
    written += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    for place in places:
        written += b"%010d 00000 n \n" % place
    # Nobody has the password: O and U are of no key.
    lock = b" /Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <%s> /U <%s> >> /ID [<00><00>]" % (
        b"00" * 32,
        b"11" * 32,
    )
    trailer = b"<< /Size %d /Root 1 0 R%s >>" % (len(objects) + 1, lock if encrypted else b"")
    return bytes(written) + b"trailer\n" + trailer + b"\nstartxref\n%d\n%%%%EOF\n" % start
