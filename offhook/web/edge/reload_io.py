"""Applies a changed configuration to a running server."""

from collections.abc import Callable
from dataclasses import replace

from loguru import logger
from pydantic import ValidationError

from offhook.media.leg import LegError
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.sip.messages.grammar import SipError
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.engines import Tts
from offhook.web.config.programs import Speech
from offhook.web.config.reading.faults import faults_of
from offhook.web.config.server import Server
from offhook.web.edge.builder.changes import changes
from offhook.web.edge.edge_io import Edge, check_knowledge, check_mcp, check_realtime
from offhook.web.edge.placing.requests import fault_of_doors
from offhook.web.workers.engines.abilities_io import check_engines

RELOADED = (
    *("agent", "agents", "callers", "frontdesk", "hours", "knowledge", "mcp", "prices"),
    *("queues", "realtime", "tenants", "transfers"),
)
"""Sections that can change at run time; calls in progress keep the old settings."""
RELOADED_OF_SERVER = (
    *("api_key", "admin_key", "names", "origins", "metrics"),
    *("share_per_address", "share_per_key", "proxies"),
)
BOUND = (
    *("host", "udp", "tcp", "tls", "ws", "wss", "rtp_ports", "authorities", "trace_messages"),
    "recovery_seconds",
)
"""Keys of [sip] that need a restart."""
BOUND_OF_CARRIER = ("provider", "port")
"""Keys of a carrier that need a restart, as does adding or removing one."""

Read = Callable[[], Config]
"""Reads the configuration again. Raises ConfigError."""


def left_for_restart(old: Config, new: Config) -> list[str]:
    """Describes the differences that need a restart."""
    left = []
    for name in Config.model_fields:
        a, b = getattr(old, name), getattr(new, name)
        fields: list[str] = []
        match name:
            case _ if name in RELOADED:
                continue
            case "server":
                fields = [f for f in Server.model_fields if f not in RELOADED_OF_SERVER]
            case "tts":
                fields = [f for f in Tts.model_fields if f != "lexicon"]
            case "speech":
                fields = [f for f in Speech.model_fields if f != "keys"]
            case "sip" if a is not None and b is not None:
                fields = list(BOUND)
            case "carriers":
                left += _carriers_left(a, b)
            case _:
                left += [f"[{name}]"] * (a != b)
        left += [f"[{name}] {f}" for f in fields if getattr(a, f) != getattr(b, f)]
    return left


def _carriers_left(old: tuple[CarrierSettings, ...], new: tuple[CarrierSettings, ...]) -> list[str]:
    before, now = ({carrier.name: carrier for carrier in carriers} for carriers in (old, new))
    left = []
    for name in sorted(before.keys() | now.keys()):
        a, b = before.get(name), now.get(name)
        if a is None or b is None:
            left.append(f"[[carriers]] {name}")
        else:
            fields = [f for f in BOUND_OF_CARRIER if getattr(a, f) != getattr(b, f)]
            left += [f"[[carriers]] {name} {f}" for f in fields]
    return left


def reloaded(running: Config, read: Config) -> Config:
    """Returns the running configuration with the changes that can be applied. Raises ConfigError if
    they do not fit together or would expose the server."""
    server = {name: getattr(read.server, name) for name in RELOADED_OF_SERVER}
    changed = {
        **{name: getattr(read, name) for name in RELOADED},
        "server": running.server.model_copy(update=server),
        "tts": running.tts.with_lexicon_of(read.tts),
        "speech": running.speech.model_copy(update={"keys": read.speech.keys}),
        "carriers": tuple(_reloaded_carrier(carrier, read) for carrier in running.carriers),
    }
    if running.sip is not None and read.sip is not None:
        bound = {name: getattr(running.sip, name) for name in BOUND}
        changed["sip"] = replace(read.sip, **bound)
    try:
        # The combination of old and new was never validated.
        new = Config.model_validate({**dict(running), **changed})
    except ValidationError as error:
        raise ConfigError("\n".join(faults_of(error, Config))) from error
    if fault := fault_of_doors(new):
        raise ConfigError(fault)
    return new


def _reloaded_carrier(running: CarrierSettings, read: Config) -> CarrierSettings:
    same = (c for c in read.carriers if (c.name, c.provider) == (running.name, running.provider))
    found = next(same, running)
    return replace(found, port=running.port)


def use(edge: Edge, read: Config) -> None:
    """Applies the changes to the edge and reloads the phones' certificate. Calls in progress are
    unaffected. Raises ConfigError, changing nothing."""
    new = reloaded(edge.config, read)
    check_realtime(new)
    edge.agents.load(read)
    check_mcp(new)
    check_knowledge(new)
    try:
        if edge.carriers is not None:
            use_carriers = edge.carriers.prepare(new.carriers)
        if edge.sip is not None and new.sip is not None:
            edge.sip.reload(new.sip)
    except LegError as error:
        raise ConfigError(f"carriers: {error}") from error
    except SipError as error:
        raise ConfigError(f"sip: {error}") from error
    if edge.carriers is not None:
        use_carriers()
    edge.config = new
    edge.agents.probes.use(new)
    edge.queues.reload()
    if edge.bot is None:
        edge.agents.use(new)
    if edge.speech is not None:
        edge.speech.lexicon = new.tts.pronunciations
        edge.speech.use_keys(new.speech, new.server.shares)


class Reload:
    """Handles SIGHUP: reads the configuration and applies what can be applied."""

    def __init__(
        self,
        edge: Edge,
        started_with: Config,
        read: Read,
        then: Callable[[Config], None] = lambda config: None,
    ) -> None:
        """`then` is called with the configuration now in effect."""
        self._edge, self._started_with, self._read, self._then = edge, started_with, read, then

    def __call__(self) -> bool:
        """Returns whether what was read is used."""
        before = self._edge.config
        try:
            config = self._read()
            if fault := fault_of_doors(config):
                raise ConfigError(fault)
            check_engines(config)
            use(self._edge, config)
        except ConfigError as error:
            faults = str(error).replace("\n", "; ")
            logger.error("the configuration is unchanged: {}", faults)
            return False
        words = changes(before, self._edge.config) or "no setting is another"
        logger.info("the configuration was read again: {}", words)
        if left := left_for_restart(self._started_with, config):
            logger.warning("what else has changed takes a restart: {}", ", ".join(left))
        self._then(self._edge.config)
        return True
