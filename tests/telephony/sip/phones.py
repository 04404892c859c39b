"""Real phones for the tests: an endpoint of ours whose agent is a tone, and baresip.

Each side of a call says a tone of its own and keeps what it hears, so that a test can tell who was
heard by whom.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import wave
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import numpy as np
import pytest

from offhook.media.clock_io import PacketClock
from offhook.media.codecs.opus import OpusSettings
from offhook.media.leg import Claim, Leg
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_OUT
from offhook.signaling.peer_io import PeerLeg
from offhook.telephony.call_record import CallRecord
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.trunks.registration_table import RegistrationState
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from tests.support.listening import Listening
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S

OUR_TONE = 880
THEIR_TONE = 440
needs_baresip = pytest.mark.skipif(not shutil.which("baresip"), reason="baresip is not installed")
needs_sipp = pytest.mark.skipif(not shutil.which("sipp"), reason="sipp is not installed")
needs_kamailio = pytest.mark.skipif(
    not shutil.which("kamailio"), reason="kamailio is not installed"
)
LOOPBACK = Trunk("loopback", addresses=("127.0.0.0/8",))


def peak_hz(pcm: np.ndarray, rate: int) -> float:
    """The strongest frequency."""
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm))))
    return float((spectrum[5:].argmax() + 5) * rate / len(pcm))


def level(pcm: np.ndarray) -> float:
    return float(np.sqrt((pcm.astype(float) ** 2).mean())) if len(pcm) else 0.0


def is_tone(pcm: np.ndarray, rate: int, hz: float) -> bool:
    """Mostly this tone, loud, for half a second at least."""
    if len(pcm) < rate // 2 or level(pcm) < 1000:
        return False
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm)))) ** 2
    at = round(hz * len(pcm) / rate)
    width = max(3, len(pcm) // (rate // 8))
    return float(spectrum[at - width : at + width].sum() / spectrum.sum()) > 0.8


class Talk:
    """One call that our side had."""

    def __init__(self, leg: Leg, agent: str) -> None:
        self.leg, self.agent = leg, agent
        self.heard: list[np.ndarray] = []
        self.keys = ""
        self.stop: Callable[[], None] = lambda: None
        self.over = asyncio.Event()

    @property
    def sound(self) -> np.ndarray:
        return np.concatenate(self.heard) if self.heard else np.zeros(0, np.int16)

    def hears(self, hz: float, seconds: float = 1.0) -> bool:
        """The last seconds were this tone."""
        return is_tone(self.sound[-int(seconds * RATE_IN) :], RATE_IN, hz)


class ToneHost:
    """An edge whose agent says a tone until somebody hangs up."""

    def __init__(self, hz: float = OUR_TONE) -> None:
        self.clock = PacketClock()
        self.opus = OpusSettings()
        self.talks: list[Talk] = []
        self.records: list[CallRecord] = []
        self.full = False
        self._hz = hz
        self._began = asyncio.Condition()

    def admit(self) -> None:
        if self.full:
            raise RuntimeError("all lines are busy")

    def admit_stranger(self, address: str) -> Claim:
        self.admit()
        return Claim(frozenset((address,)), 0.0)

    async def run_call(self, leg: Leg, agent: str) -> None:
        talk = Talk(leg, agent)
        phase = 0

        def tick(heard: np.ndarray, said: object, now: float) -> None:
            nonlocal phase
            talk.heard.append(heard.copy())
            angles = 2 * np.pi * self._hz / RATE_OUT * (np.arange(SAMPLES_OUT) + phase)
            phase += SAMPLES_OUT
            leg.playout.write((8000 * np.sin(angles)).astype(np.int16))

        def press(key: str) -> None:
            talk.keys += key

        leg.listener = Listening(on_dtmf=press)
        talk.stop = stop = leg.listen(tick)
        self.clock.add(leg)
        async with self._began:
            self.talks.append(talk)
            self._began.notify_all()
        try:
            await leg.until_closed()
        finally:
            if talk.stop is stop:
                stop()
            self.clock.remove(leg)
            talk.over.set()

    def leave(self, talk: Talk) -> None:
        """The agent says no more, and hears no more, of a call that goes on."""
        talk.stop()
        talk.stop = lambda: None
        talk.leg.playout.flush()

    def webrtc_leg(self, call_id: str) -> Leg:
        return PeerLeg(call_id)

    def record(self, record: CallRecord) -> None:
        self.records.append(record)

    async def talk(self, number: int = 0, seconds: float = 60) -> Talk:
        """The call of that number, once it is there."""
        async with asyncio.timeout(seconds), self._began:
            await self._began.wait_for(lambda: len(self.talks) > number)
        return self.talks[number]


@asynccontextmanager
async def endpoint(
    host: ToneHost | None = None, /, **settings: object
) -> AsyncIterator[tuple[SipEndpoint, ToneHost]]:
    """Ours, on free ports of loopback, which is a trunk unless `settings` say otherwise."""
    host = host or ToneHost()
    port = free_port()
    chosen: dict[str, object] = {"udp": port, "tcp": port, "trunks": (LOOPBACK,), **settings}
    sip = SipEndpoint(SipSettings(**chosen), host)  # type: ignore[arg-type]
    await sip.start()
    try:
        yield sip, host
    finally:
        await sip.close()


def port_of(sip: SipEndpoint, transport: str) -> int:
    return next(port for name, _, port in sip.bound if name == transport)


def write_certificate(directory: Path) -> tuple[Path, Path]:
    """For 127.0.0.1, signed by itself: certificate and key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    names = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = directory / "certificate.pem", directory / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def write_tone(path: Path, hz: float, rate: int, seconds: float = 60) -> None:
    """A WAV file. baresip hangs up when its file ends, so it has to be long."""
    samples = 8000 * np.sin(2 * np.pi * hz / rate * np.arange(int(rate * seconds)))
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())


MODULES = ("opus", "g722", "g711", "sndfile", "aufile", "aubridge", "srtp", "ice", "dtls_srtp")

ENDS_S = 20.0
"""Time limit in s for a baresip to end; then it is killed."""


class Baresip:
    """A phone of its own: says a tone, answers or dials, records what it hears."""

    def __init__(
        self,
        directory: Path,
        codec: str = "pcmu",
        rate: int = 8000,
        account: str = "",
        lines: Sequence[str] = (),
        hz: float = THEIR_TONE,
        host: str = "127.0.0.1",
    ) -> None:
        """codec: as baresip writes it, "opus/48000/2". account: its parameters, with their ";"."""
        self.port = free_port()
        named = f"[{host}]" if ":" in host else host
        self.uri = f"sip:phone@{named}:{self.port}"
        self.directory = directory
        self.output = ""
        self._rate = rate
        self._control = free_port()
        self._host = host
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        (directory / "rec").mkdir(parents=True)
        write_tone(directory / "tone.wav", hz, rate)
        modules = next(
            p
            for p in (*Path("/usr/lib").glob("*/baresip/modules"), Path("/usr/lib/baresip/modules"))
            if p.exists()
        )
        rtp = free_port(20)
        config = [
            f"sip_listen {named}:{self.port}",
            f"audio_source aufile,{directory}/tone.wav",
            "audio_player aubridge,nowhere",
            "audio_alert aubridge,elsewhere",
            f"ausrc_srate {rate}",
            "ausrc_channels 1",
            *(f"{kind}_format s16" for kind in ("ausrc", "auplay", "auenc", "audec")),
            "audio_buffer 20-160",
            f"rtp_ports {rtp}-{rtp + 19}",
            "jitter_buffer_delay 1-10",
            f"module_path {modules}",
            *(f"module {name}.so" for name in MODULES),
            "module_tmp uuid.so",
            "module_tmp account.so",
            "module_app menu.so",
            "module_app ctrl_tcp.so",
            f"ctrl_tcp_listen 127.0.0.1:{self._control}",
            f"snd_path {directory}/rec",
            "ringback_disabled yes",
            "opus_bitrate 28000",
            f"net_interface {host}",
            *lines,
        ]
        (directory / "config").write_text("\n".join(config) + "\n")
        user = f"<{self.uri}>;regint=0" if "regint" not in account and "@" not in account else ""
        text = (
            f"{user};audio_codecs={codec}{account}" if user else f"{account};audio_codecs={codec}"
        )
        (directory / "accounts").write_text(text + "\n")
        (directory / "contacts").touch()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Baresip"]:
        log = (self.directory / "log").open("wb")
        family = "-6" if ":" in self._host else "-4"
        command = ("baresip", family, "-f", str(self.directory), "-s")
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            async with asyncio.timeout(HANGS_S):
                while True:
                    try:
                        connection = await asyncio.open_connection("127.0.0.1", self._control)
                        break
                    except OSError:
                        await asyncio.sleep(0.05)
            self._reader, self._writer = connection
            yield self
        finally:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                async with asyncio.timeout(ENDS_S):
                    await self._process.wait()
            except TimeoutError:  # one whose subscription ends with it may go round for ever
                self._process.kill()
                await self._process.wait()
            log.close()
            self.output = (self.directory / "log").read_text(errors="replace")
            with contextlib.suppress(AttributeError):
                self._writer.close()

    async def command(self, name: str, parameters: str = "") -> None:
        data = json.dumps({"command": name, "params": parameters}).encode()
        self._writer.write(b"%d:%s," % (len(data), data))
        await self._writer.drain()

    async def event(self, kind: str, seconds: float = 60) -> dict[str, object]:
        """The next event of that type, CALL_ESTABLISHED say; others are passed over."""
        async with asyncio.timeout(seconds):
            while True:
                length = await self._reader.readuntil(b":")
                message = json.loads(await self._reader.readexactly(int(length[:-1])))
                await self._reader.readexactly(1)
                if message.get("type") == kind:
                    return message

    async def says(self, text: str, seconds: float = 60) -> None:
        """Wait for it in what the phone prints."""
        async with asyncio.timeout(seconds):
            while text not in (self.directory / "log").read_text(errors="replace"):
                await asyncio.sleep(0.05)

    async def dial(self, uri: str) -> None:
        await self.command("dial", uri)
        await self.event("CALL_ESTABLISHED")

    async def hang_up(self) -> None:
        await self.command("hangup")
        await self.event("CALL_CLOSED")

    def heard(self) -> np.ndarray:
        """All that its recordings hold, in order; complete once it has hung up."""
        files = sorted((self.directory / "rec").glob("*-dec.wav"))
        pieces = []
        for file in files:
            with wave.open(str(file)) as reader:
                pcm = np.frombuffer(reader.readframes(reader.getnframes()), "<i2")
                pieces.append(pcm[:: reader.getnchannels()])
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int16)

    def hears(self, hz: float) -> bool:
        return is_tone(self.heard(), self._rate, hz)


CONFIGURATION = """#!KAMAILIO
debug=0
log_stderror=yes
children=1
tcp_children=1
auto_aliases=no
listen=udp:127.0.0.1:{port}
listen=tcp:127.0.0.1:{port}
loadmodule "tm.so"
loadmodule "tmx.so"
loadmodule "sl.so"
loadmodule "rr.so"
loadmodule "pv.so"
loadmodule "maxfwd.so"
loadmodule "siputils.so"
loadmodule "usrloc.so"
loadmodule "registrar.so"
loadmodule "auth.so"
modparam("registrar", "min_expires", 1)
modparam("auth", "nonce_expire", 30)
modparam("auth", "algorithm", "{algorithm}")
request_route {{
    if (!mf_process_maxfwd_header("10")) {{ sl_send_reply("483", "Too Many Hops"); exit; }}
    if ($rm == "CANCEL") {{ if (t_check_trans()) t_relay(); exit; }}
    if (has_totag()) {{
        if (loose_route()) {{ t_relay(); exit; }}
        if ($rm == "ACK") {{ if (t_check_trans()) t_relay(); exit; }}
        sl_send_reply("404", "Not Here"); exit;
    }}
    t_check_trans();
    if ($rm == "REGISTER") {{
        if (!pv_www_authenticate("$fd", "secret", "0")) {{ www_challenge("$fd", "1"); exit; }}
        save("location");
        exit;
    }}
    if ($rm == "INVITE") {{
        if (!pv_proxy_authenticate("$fd", "secret", "0")) {{ proxy_challenge("$fd", "1"); exit; }}
        consume_credentials();
        record_route();
    }}
    if ($rp == {port} && !lookup("location")) {{ sl_send_reply("404", "Not Found"); exit; }}
    t_relay();
}}
"""


@asynccontextmanager
async def kamailio(
    directory: Path, algorithm: str = "MD5", port: int | None = None, killed: bool = False
) -> AsyncIterator[int]:
    """A registrar and proxy for users whose password is "secret"; gives its port. `killed`: at the
    end, with all its processes, without a word to anybody."""
    port = port or free_port()
    file = directory / "kamailio.cfg"
    file.write_text(CONFIGURATION.format(port=port, algorithm=algorithm))
    with (directory / "kamailio.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *("kamailio", "-f", str(file), "-DD", "-E", "-m", "32", "-M", "4"),
            *("-P", str(directory / "kamailio.pid"), "-w", str(directory)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(HANGS_S):
                while True:
                    try:
                        _, writer = await asyncio.open_connection("127.0.0.1", port)
                        writer.close()
                        break
                    except OSError:
                        await asyncio.sleep(0.05)
            yield port
        finally:
            if killed:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.terminate()
            await process.wait()


async def sipp(
    directory: Path,
    *arguments: str,
    seconds: float = 60,
    host: str = "127.0.0.1",
    network: str = "",
) -> tuple[int, str]:
    """Run it to its end: exit code (0: every call as in the scenario) and what it printed.
    `network`: the path of another one to run in."""
    process = await asyncio.create_subprocess_exec(
        *(("nsenter", f"--net={network}") if network else ()),
        *("sipp", "-nostdin", "-i", host, "-timeout", f"{seconds - 3}s", *arguments),
        cwd=directory,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(seconds):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode(errors="replace")[-4000:]


async def registered(sip: SipEndpoint) -> None:
    """Wait until the first trunk is."""
    async with asyncio.timeout(HANGS_S):
        while not any(r.state is RegistrationState.REGISTERED for r in sip.registrations()):
            await asyncio.sleep(0.02)
