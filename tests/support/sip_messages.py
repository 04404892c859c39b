"""SIP messages to read: those of everyday calls, and ones with the 49 traits of RFC 4475.

TORTURE has a message of our own for each one of the RFC, under its name there.
"""

SDP = b"".join(
    line + b"\r\n"
    for line in (
        b"v=0",
        b"o=- 8124 1 IN IP4 192.0.2.40",
        b"s=-",
        b"c=IN IP4 192.0.2.40",
        b"t=0 0",
        b"m=audio 17320 RTP/AVP 9 8 0 101",
        b"a=rtpmap:101 telephone-event/8000",
        b"a=fmtp:101 0-15",
        b"a=ptime:20",
    )
)
_SDP_TYPE = "Content-Type: application/sdp"


def message(start: str, *fields: str, body: bytes = b"", end: bytes = b"\r\n\r\n") -> bytes:
    """A start line, header fields as they are given, and a body."""
    return "\r\n".join((start, *fields)).encode("utf-8") + end + body


def _length(body: bytes) -> str:
    return f"Content-Length: {len(body)}"


def _via(branch: str, host: str = "192.0.2.40:5060", transport: str = "UDP") -> str:
    return f"Via: SIP/2.0/{transport} {host};branch=z9hG4bK{branch}"


def _fields(
    name: str, cseq: str, *others: str, via: str = "", from_: str = "", to: str = ""
) -> tuple[str, ...]:
    """The header fields every message must have, as plain as they can be."""
    return (
        via or _via(f"-{name}"),
        from_ or f"From: <sip:ann@caller.example>;tag=a-{name}",
        to or "To: <sip:desk@called.example>",
        f"Call-ID: {name}@caller.example",
        f"CSeq: {cseq}",
        "Max-Forwards: 70",
        *others,
    )


def _with_sdp(name: str, *others: str, start: str = "", **places: str) -> bytes:
    """An INVITE with a session description."""
    start = start or "INVITE sip:desk@called.example SIP/2.0"
    fields = _fields(name, "4 INVITE", *others, _SDP_TYPE, _length(SDP), **places)
    return message(start, *fields, body=SDP)


def _options(name: str, *others: str, start: str = "", **places: str) -> bytes:
    start = start or "OPTIONS sip:desk@called.example SIP/2.0"
    return message(start, *_fields(name, "9 OPTIONS", *others, "l: 0", **places))


def _register(name: str, *others: str, **places: str) -> bytes:
    start = "REGISTER sip:called.example SIP/2.0"
    return message(start, *_fields(name, "2 REGISTER", *others, "Content-Length: 0", **places))


def _in_dialog(method: str, cseq: int, *others: str, body: bytes = b"") -> bytes:
    """A request of a caller whose call to the desk is up."""
    return message(
        f"{method} sip:desk@198.51.100.7:5060;transport=udp SIP/2.0",
        _via(f"{method.lower()}{cseq}") + ";rport",
        "Route: <sip:198.51.100.1;lr;did=1f.7d2>",
        "Max-Forwards: 70",
        'From: "Ann" <sip:+15550100@trunk.example>;tag=as2b41',
        "To: <sip:desk@called.example>;tag=7fe210",
        "Call-ID: 77d2c1e0@192.0.2.40",
        f"CSeq: {cseq} {method}",
        *others,
        _length(body),
        body=body,
    )


def _response(status: str, cseq: str, *others: str, body: bytes = b"") -> bytes:
    return message(
        f"SIP/2.0 {status}",
        _via("5d1c", "203.0.113.9:5060") + ";rport=5060;received=203.0.113.9",
        'From: "Desk" <sip:desk@called.example>;tag=19ab',
        "To: <sip:+15550199@trunk.example>;tag=gw-5512",
        "Call-ID: 4417cc@203.0.113.9",
        f"CSeq: {cseq}",
        *others,
        _length(body),
        body=body,
    )


_PARTS = (
    b"--part\r\nContent-Type: application/isup;version=itu-t92+\r\n\r\n\x01\x00\x49\n\x00\r\n"
    b"--part\r\nContent-Type: application/sdp\r\n\r\n" + SDP + b"\r\n--part--\r\n"
)
_RELAY = b"Signal=5\r\nDuration=160\r\n"
_FRAGMENT = b"SIP/2.0 180 Ringing\r\n"

TYPICAL: dict[str, bytes] = {
    "INVITE of a trunk": message(
        "INVITE sip:+15550142@203.0.113.9:5060 SIP/2.0",
        _via("6c9a.0d81a2.1", "198.51.100.1"),
        _via("-3c2e", "192.0.2.40:5062") + ";received=192.0.2.40;rport=5062",
        "Record-Route: <sip:198.51.100.1;lr;ftag=as2b41>",
        "Max-Forwards: 69",
        'From: "Ann Example" <sip:+15550100@trunk.example>;tag=as2b41',
        "To: <sip:+15550142@called.example>",
        "Contact: <sip:+15550100@192.0.2.40:5062;transport=udp>",
        "Call-ID: 77d2c1e0@192.0.2.40",
        "CSeq: 102 INVITE",
        "Allow: INVITE, ACK, CANCEL, OPTIONS, BYE, REFER, SUBSCRIBE, NOTIFY, INFO, UPDATE, PRACK",
        "Supported: replaces, timer, 100rel",
        "Session-Expires: 1800;refresher=uac",
        "User-Agent: A trunk",
        'P-Asserted-Identity: "Ann Example" <sip:+15550100@trunk.example>',
        _SDP_TYPE,
        _length(SDP),
        body=SDP,
    ),
    "INVITE with ISUP": message(
        "INVITE sip:+15550142@203.0.113.9 SIP/2.0",
        *_fields("isup", "1 INVITE", "MIME-Version: 1.0"),
        'Content-Type: multipart/mixed;boundary="part"',
        _length(_PARTS),
        body=_PARTS,
    ),
    "INVITE over IPv6": _with_sdp(
        "v6",
        "Contact: <sip:ann@[2001:db8::5]:5061;transport=tls>",
        start="INVITE sips:desk@[2001:db8::1]:5061 SIP/2.0",
        via="Via: SIP/2.0/TLS [2001:db8::5]:5061;branch=z9hG4bKv6;received=[2001:db8::5]",
    ),
    "INVITE of a browser": _with_sdp(
        "ws",
        "Contact: <sip:k2j1@df7j.invalid;transport=ws;ob>;reg-id=1"
        ';+sip.instance="<urn:uuid:5f1d2c3b-0000-4000-8000-00000000002a>"',
        'Proxy-Authorization: Digest username="ann",realm="a, b",nonce="Za==",uri="sip:x",'
        'response="5a02",qop=auth,nc=00000001,cnonce="f0"',
        via=_via("ws", "df7j.invalid", "WSS"),
    ),
    "180": _response("180 Ringing", "31 INVITE", "RSeq: 8819", "Require: 100rel"),
    "200 of INVITE": _response(
        "200 OK",
        "31 INVITE",
        "Record-Route: <sip:198.51.100.1;lr>, <sip:198.51.100.2:5080;lr;vst=AAA-=BB>",
        "m: <sip:gw@198.51.100.77:5080>",
        "k: timer",
        "x: 1800;refresher=uas",
        "c: application/sdp",
        body=SDP,
    ),
    "401": _response(
        "401 Unauthorized",
        "7 REGISTER",
        'WWW-Authenticate: Digest realm="trunk.example", nonce="Y8a1", algorithm=SHA-256, '
        'qop="auth,auth-int"',
        'WWW-Authenticate: Digest realm="trunk.example", nonce="Y8a2", algorithm=MD5, qop="auth"',
    ),
    "ACK": _in_dialog("ACK", 102),
    "CANCEL": _in_dialog("CANCEL", 102, 'Reason: SIP;cause=200;text="Call completed elsewhere"'),
    "BYE": _in_dialog("BYE", 103, 'Reason: Q.850;cause=16;text="Normal call clearing"'),
    "INFO": _in_dialog("INFO", 104, "Content-Type: application/dtmf-relay", body=_RELAY),
    "PRACK": _in_dialog("PRACK", 105, "RAck: 8819 102 INVITE"),
    "UPDATE": _in_dialog("UPDATE", 106, "Session-Expires: 1800;refresher=uac", "Min-SE: 90"),
    "REFER": _in_dialog(
        "REFER",
        107,
        "Refer-To: <sip:bob@called.example?Replaces=12%4092.0.2.4%3Bto-tag%3D7%3Bfrom-tag%3D9>",
        "Referred-By: <sip:ann@caller.example>",
        "Contact: <sip:+15550100@192.0.2.40:5062>",
    ),
    "NOTIFY": _in_dialog(
        "NOTIFY",
        108,
        "Event: refer",
        "Subscription-State: active;expires=60",
        "Content-Type: message/sipfrag;version=2.0",
        body=_FRAGMENT,
    ),
    "REGISTER": _register(
        "reg",
        "Contact: <sip:ann@192.0.2.40:5062;ob>;expires=600;q=0.7",
        "Expires: 600",
        "Supported: path, outbound",
    ),
    "REGISTER that takes all back": _register("unreg", "Contact: *", "Expires: 0"),
    "OPTIONS": _options("ping", "Accept: application/sdp"),
}
"""Messages of everyday calls, all well-formed."""

_LONG = "and-on" * 15
_ODD_METHOD = "!ask_%24me'~+`"

TORTURE: dict[str, bytes] = {
    # RFC 4475 §3.1.1: well-formed, however odd.
    "wsinv": message(
        "INVITE sip:desk@called.example;flag SIP/2.0",
        "TO :",
        " sip:desk@called.example ;   tag\t= 7761t",
        'fRoM   : "A \\\\ B \\""         <sip:ann@caller.example>',
        "  ;",
        "\ttag = 55ff",
        "mAX-fORWARDS: 0071",
        "Call-ID: wsinv@caller.example",
        f"Content-Length   : {len(SDP)}",
        "cseq: 0012",
        "  INVITE",
        "Via  : SIP  /   2.0",
        " /UDP",
        "    192.0.2.40;branch=z9hG4bKws0",
        "s :",
        "Brand-New:   one",
        " two",
        "Only-Marks: ;,,;;,",
        _SDP_TYPE,
        "Route:",
        " <sip:198.51.100.1;lr;odd=yes;flag>",
        "v:  SIP  / 2.0  / TCP     far.example   ;",
        "  branch  =   z9hG4bKws1  ,",
        " SIP  /    2.0   / UDP  198.51.100.44   ; branch=",
        " z9hG4bKws2",
        r'm:"A \"  quote" <sip:ann@caller.example> ; new =',
        "      thing ;",
        "  flag ; q = 0.5",
        body=SDP,
    ),
    "intmeth": message(
        f"{_ODD_METHOD} sip:9_an.odd~(u$er)&so+on,?/;*:p=&1~(w)@called.example SIP/2.0",
        "Via: SIP/2.0/TCP h.example;branch=z9hG4bK.!%77*_+`'~-",
        'To: "BEEP:\\\x07 ZERO:\\\x00 RUB:\\\x7f" <sip:9_an.odd~(u$er)&so+on,?/;*@called.example>',
        "From: one~` two'+_ three*%!.- <sip:ann@caller.example>"
        ";own'~+*_!.-%=\"поиск\";tag=_t~9'+`*%!-.",
        "Call-ID: odd%9H-!.*_+'@at`~)(><:\\/\"][?}{",
        f"CSeq: 139 {_ODD_METHOD}",
        "Max-Forwards: 255",
        "own-Header-!.%*+_`'~:\ufeff電話",
        "Content-Length: 0",
    ),
    "esc01": _with_sdp(
        "esc01",
        "C%6fntact-Not: 1",
        "Contact:",
        "  <sip:a%6En@caller.example;%6C%72;k%65y=v%25%34%31>",
        start="INVITE sip:sips%3Adesk%40called.example@trunk.example SIP/2.0",
        to="To: sip:%64es%6b@called.example",
        from_="From: <sip:I%20am%20ann@caller.example>;tag=1",
    ),
    "escnull": _register(
        "escnull",
        "Contact: <sip:%00@caller.example>",
        "Contact: <sip:%00%00@caller.example>",
        to="To: sip:no-%00-thing@called.example",
        from_="From: sip:no-%00-thing@called.example;tag=2",
    ),
    "esc02": message(
        "OPT%49ONS sip:called.example SIP/2.0",
        *_fields(
            "esc02",
            "3 OPT%49ONS",
            "Contact: <sip:one@caller.example>",
            "C%6Fntact: <sip:two@caller.example>",
            "Contact: <sip:three@caller.example>",
            "l: 0",
            via="Via: SIP/2.0/TCP caller.example;branch=z9hG4bK77%qzz",
            to='To: "%Y%46" <sip:ann@caller.example>',
        ),
    ),
    "lwsdisp": _options("lwsdisp", from_="From: ann<sip:ann@caller.example>;tag=lw"),
    "longreq": _with_sdp(
        "longreq",
        f"Long-{_LONG}-{_LONG}: {_LONG}-{_LONG}; {_LONG}={_LONG}",
        *(f"{'vV'[i % 2]}: SIP/2.0/TCP hop{i}.example;branch=z9hG4bK{i}" for i in range(33)),
        f"Contact: <sip:{_LONG}{_LONG}{_LONG}@caller.example>",
        via=f"Via: SIP/2.0/TCP caller.example;received=192.0.2.40;branch=z9hG4bK{_LONG}{_LONG}",
        to=f'To: "The {_LONG}"<sip:desk@called.example:6000;p={_LONG};{_LONG}=v>',
        from_=f"F: sip:{_LONG}{_LONG}@caller.example;tag={_LONG};p-{_LONG}={_LONG};flag-{_LONG}",
    ),
    "dblreq": _register("dblreq", "Contact: sip:ann@caller.example")
    + b"\r\n"
    + _with_sdp("second"),
    "semiuri": _options(
        "semiuri",
        "Accept: application/sdp, message/sip,",
        "        multipart/mixed",
        start="OPTIONS sip:desk;ext=7%40floor@called.example SIP/2.0",
    ),
    "transports": _options(
        "transports",
        _via("t1", "t1.example", "SCTP"),
        _via("t2", "t2.example", "TLS"),
        _via("t3", "t3.example", "PIGEON"),
        _via("t4", "t4.example", "TCP"),
    ),
    "mpart01": message(
        "MESSAGE sip:desk@called.example SIP/2.0",
        *_fields("mpart01", "1 MESSAGE", "Identity: Zm9vYmFyCg=="),
        "Content-Type: multipart/mixed;boundary=part",
        _length(_PARTS),
        body=_PARTS,
    ),
    "unreason": _response("200 = 10**2 * 2; это двести", "4 INVITE"),
    "noreason": _response("100 ", "4 INVITE"),
    # §3.1.2: malformed.
    "badinv01": _with_sdp(
        "badinv01",
        'Contact: "Ann" <sip:ann@caller.example>;;;',
        via="Via: SIP/2.0/UDP 192.0.2.40;;,;,,",
    ),
    "clerr": message(
        "INVITE sip:desk@called.example SIP/2.0",
        *_fields("clerr", "4 INVITE", _SDP_TYPE, "Content-Length: 9000"),
        body=SDP,
    ),
    "ncl": message(
        "INVITE sip:desk@called.example SIP/2.0",
        *_fields("ncl", "4 INVITE", _SDP_TYPE, "Content-Length: -17"),
        body=SDP,
    ),
    "scalar02": message(
        "REGISTER sip:called.example SIP/2.0",
        *_fields("scalar02", "18446744073709551617 REGISTER")[:-1],
        "Max-Forwards: 256",
        "Expires: 1" + "0" * 90,
        "Contact: <sip:ann@caller.example>;expires=99999999999999",
        "Content-Length: 0",
    ),
    "scalarlg": _response(
        "503 Service Unavailable",
        "1844674407370955161700 OPTIONS",
        "Retry-After: 77777777777777777777777",
        'Warning: 4099 far "Too much"',
    ),
    "quotbal": _with_sdp("quotbal", to='To: "The desk <sip:desk@called.example>'),
    "ltgtruri": _with_sdp("ltgtruri", start="INVITE <sip:desk@called.example> SIP/2.0"),
    "lwsruri": _with_sdp("lwsruri", start="INVITE sip:desk@called.example; lr SIP/2.0"),
    "lwsstart": _with_sdp("lwsstart", start="INVITE  sip:desk@called.example  SIP/2.0"),
    "trws": _options("trws", start="OPTIONS sip:desk@called.example SIP/2.0  "),
    "escruri": _with_sdp(
        "escruri", start="INVITE sip:desk@called.example?Route=%3Csip:far.example%3E SIP/2.0"
    ),
    "baddate": _with_sdp("baddate", "Date: Mon, 06 Jul 2026 09:30:00 CET"),
    "regbadct": _register(
        "regbadct", "Contact: sip:ann@caller.example?Route=%3Csip:far.example%3E"
    ),
    "badaspec": _options("badaspec", to='To: "Desk, The" < sip:desk@called.example >'),
    "baddn": _options("baddn", to="To: Desk, The <sip:desk@called.example>"),
    "badvers": _options(
        "badvers",
        start="OPTIONS sip:desk@called.example SIP/9.0",
        via="Via: SIP/9.0/UDP 192.0.2.40;branch=z9hG4bKv9",
    ),
    "mismatch01": message(
        "OPTIONS sip:desk@called.example SIP/2.0", *_fields("mis1", "8 INVITE", "l: 0")
    ),
    "mismatch02": message(
        "UNHEARD sip:desk@called.example SIP/2.0",
        *_fields("mis2", "8 INVITE", _SDP_TYPE, _length(SDP)),
        body=SDP,
    ),
    "bigcode": _response("4294967497 not quite 201", "4 INVITE"),
    # §3.2: for the transaction layer.
    "badbranch": _options("badbranch", via="Via: SIP/2.0/UDP 192.0.2.40;branch=z9hG4bK"),
    # §3.3: for whoever answers.
    "insuf": message(
        "INVITE sip:desk@called.example SIP/2.0",
        "CSeq: 4 INVITE",
        _via("insuf"),
        _SDP_TYPE,
        f"l: {len(SDP)}",
        body=SDP,
    ),
    "unkscm": _options("unkscm", start="OPTIONS whatEver:anything-at-all SIP/2.0"),
    "novelsc": _options("novelsc", start="OPTIONS made.up+beep://198.51.100.9:700 SIP/2.0"),
    "unksm2": _register(
        "unksm2",
        "Contact: <name:Ann_Example>",
        to="To: isbn:0140449132",
        from_="From: <https://caller.example>;tag=3",
    ),
    "bext01": _options(
        "bext01", "Require: no-such-thing, nor-this", "Proxy-Require: not-known, neither-known"
    ),
    "invut": message(
        "INVITE sip:desk@called.example SIP/2.0",
        *_fields("invut", "4 INVITE", "Content-Type: application/x-unheard-of"),
        "Content-Length: 9",
        body=b"<call/>\r\n",
    ),
    "regaut01": _register("regaut01", "Authorization: Handshake secret-word=no"),
    "multi01": _with_sdp(
        "multi01",
        "CSeq: 40 INVITE",
        "Call-ID: other@caller.example",
        "To: <sip:other@called.example>",
        "From: <sip:other@caller.example>;tag=other",
        "Max-Forwards: 5",
    ),
    "mcl01": _options("mcl01", "Content-Length: 11", "Content-Type: text/plain") + b"Which is it?",
    "bcast": _response("200 OK", "4 INVITE", _via("bc", "255.255.255.255"), _SDP_TYPE, body=SDP),
    "zeromf": message(
        "OPTIONS sip:desk@called.example SIP/2.0",
        *_fields("zeromf", "9 OPTIONS")[:-1],
        "Max-Forwards: 0",
        "Content-Length: 0",
    ),
    "cparam01": _register("cparam01", "Contact: sip:+15550142@gw.example;flag"),
    "cparam02": _register("cparam02", "Contact: <sip:+15550142@gw.example;flag>"),
    "regescrt": _register("regescrt", "M: <sip:ann@caller.example?Route=%3Csip:far.example%3E>"),
    "sdp01": _with_sdp("sdp01", "Accept: text/unheard-of"),
    # §3.4: as RFC 2543 had it.
    "inv2543": message(
        "INVITE sip:desk@called.example SIP/2.0",
        "Via: SIP/2.0/UDP caller.example",
        "From: <sip:+15550100@caller.example;user=phone>",
        "Record-Route: <sip:desk@called.example;maddr=far.example>",
        "To: sip:+15550142@called.example;user=phone",
        "Call-ID: inv2543@caller.example",
        "CSeq: 56 INVITE",
        _SDP_TYPE,
        body=SDP,
    ),
}
"""One for each message of RFC 4475."""
