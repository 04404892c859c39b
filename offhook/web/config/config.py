"""The configuration: `offhook.toml`, overridden by the environment, validated at start.

`OFFHOOK_SERVER_PORT=8080` overrides `port` in `[server]`. Unknown keys and invalid values stop the
server with a line each, which names the file's line or the variable, and the remedy.
"""

import ipaddress
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from offhook.pipeline.conversation.agents.frontdesk_business import DEMO, Business
from offhook.pipeline.conversation.agents.kinds import kinds
from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentKind
from offhook.pipeline.conversation.agents.kinds.voicemail import VOICEMAIL
from offhook.telephony.carriers.providers import checked
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.sip.trunks.trunks import SipSettings, read_address
from offhook.web.config.agents import DEFAULT
from offhook.web.config.agents import Agent as Agent
from offhook.web.config.engines import Asr, Engines, Tts, TurnTaking
from offhook.web.config.flows import Flow
from offhook.web.config.hours import Hours, faults_of_hours
from offhook.web.config.knowledge import Knowledge
from offhook.web.config.language_models.prices import Prices
from offhook.web.config.mcp import McpServer, McpTools
from offhook.web.config.people.callers import Callers
from offhook.web.config.people.queues import AGENT, PREFIX, Queue
from offhook.web.config.people.tenants import (
    Tenant,
    TenantName,
    Way,
    faults_between,
    faults_of_tenants,
    owner,
    owner_of_agent,
    owner_of_number,
)
from offhook.web.config.people.transfers import (
    BriefedTransfer,
    Ringing,
    faults_of_ringing,
    split_extension,
)
from offhook.web.config.programs import Realtime, Speech
from offhook.web.config.reading.environment import overrides
from offhook.web.config.reading.faults import faults_of, mistaken_types, placed
from offhook.web.config.reading.names import misread_names
from offhook.web.config.reading.toml_text import KeyPath, TomlText, read_toml
from offhook.web.config.records import Records
from offhook.web.config.rooms import Rooms
from offhook.web.config.s3 import S3
from offhook.web.config.section import Section
from offhook.web.config.server import Opus, Recording, Server, Tracing, WebRtc
from offhook.web.config.smtp import Smtp
from offhook.web.http.access import AccessPolicy, Key, Role, Scope, TenantKeys
from offhook.web.http.logs import Log as Log
from offhook.web.records.webhooks import Receiver

MAIL_DELAY_S = 5.0
"""Time in s from the end of a message until it is mailed: its recording is written by then."""
DEFAULT_FILE = Path("offhook.toml")
TRANSPORTS = ("udp", "tcp", "tls", "ws", "wss")


class ConfigError(ValueError):
    """Raised for an invalid configuration; the message has a line per error, with its place, its
    key and the remedy."""


class Config(Section):
    server: Server = Server()
    webrtc: WebRtc = WebRtc()
    opus: Opus = Opus()
    engines: Engines = Engines()
    asr: Asr = Asr()
    tts: Tts = Tts()
    agent: Agent = Agent()
    agents: dict[str, Agent] = Field({})
    """Further agents by name, selected by a route or a program."""
    mcp: dict[str, McpServer] = Field({})
    """Servers of tools by the Model Context Protocol, named by the tools of agents. They need the
    extra `mcp`."""
    transfers: dict[str, BriefedTransfer] = Field({})
    """People to whom agents transfer callers with a briefing, by the name that an agent's
    `transfers` has."""
    queues: dict[str, Queue] = Field({})
    """Callers who wait for one of several people; an agent transfers to "queue:NAME"."""
    tenants: dict[TenantName, Tenant] = Field({})
    """Customers who share the server: each sees its own calls only, and has its own lines."""
    hours: dict[str, Hours] = Field({})
    """When agents answer, and who does at other times."""
    callers: dict[str, Callers] = Field({})
    """Lists of callers, which routes of phone calls name."""
    prices: dict[str, Prices] = Field({})
    """What the models of agents cost, by their names: with them records and metrics say what calls
    cost."""
    knowledge: Knowledge = Knowledge()
    """How the documents of agents (`knowledge`) are searched."""
    sip: SipSettings | None = None
    """Phones over SIP; without this table there are none."""
    carriers: tuple[Annotated[CarrierSettings, AfterValidator(checked)], ...] = ()
    """Carriers that deliver calls as media streams."""
    speech: Speech = Speech()
    realtime: Realtime = Realtime()
    rooms: Rooms = Rooms()
    """Calls with several members: supervisors who listen, colleagues, conferences."""
    recording: Recording = Recording()
    records: Records = Records()
    s3: S3 = S3()
    smtp: Smtp = Smtp()
    log: Log = Log()
    tracing: Tracing = Tracing()
    turn: TurnTaking = TurnTaking()
    """The end-of-turn model, and times of turn-taking in milliseconds."""
    frontdesk: Business = DEMO
    """The business that the front desk represents."""
    _places: Mapping[KeyPath, str] = PrivateAttr(default_factory=dict)

    @property
    def records_calls(self) -> bool:
        """Returns whether some call may be recorded."""
        usual = self.recording.enabled
        wanted = {agent.recorded(usual) for agent in self.named_agents().values()}
        return wanted != {"never"}

    @property
    def places(self) -> Mapping[KeyPath, str]:
        """Returns where keys come from, such as "offhook.toml:3" or "OFFHOOK_SERVER_PORT", of a
        configuration that was loaded."""
        return self._places

    @field_validator("sip", mode="before")
    @classmethod
    def _transports_can_be_off(cls, table: Any) -> Any:
        """Converts `udp = false` to None, which TOML lacks."""
        if not isinstance(table, dict):
            return table
        given = {name: table[name] for name in TRANSPORTS if name in table}
        for name, value in given.items():
            if value is True:
                raise ValueError(f"{name} must be a port, or false for none")
        off = [name for name, value in given.items() if value is False or value == "false"]
        return {**table, **dict.fromkeys(off)}

    @field_validator("sip")
    @classmethod
    def _addresses_are_numeric(cls, sip: SipSettings | None) -> SipSettings | None:
        if sip is not None:
            for name in ("host", "public_address"):
                address = getattr(sip, name)
                if read_address(address) is None and (address or name == "host"):
                    raise ValueError(f"{name} is not a numeric address: {address!r}")
        return sip

    @model_validator(mode="after")
    def _sections_fit(self) -> "Config":
        rules = (
            *(self._faults_of_phones, partial(self.faults_between_agents, kinds.OURS.get)),
            *(self._faults_of_programs, self._faults_of_carriers, self._faults_of_tools),
            *(self._faults_of_analyses, self._faults_of_bucket, self._faults_of_transfers),
            self._faults_of_tenants,
            lambda: faults_of_hours(self.hours, {DEFAULT, *self.agents}),
        )
        if faults := [fault for rule in rules for fault in rule()]:
            raise ValueError("\n".join(faults))
        return self

    @property
    def receivers(self) -> tuple[Receiver, ...]:
        """Returns who is told of what the store has: programs, and people by mail."""
        extensions = self.sip.extensions if self.sip is not None else {}
        mailed = tuple(
            Receiver(
                f"mailto:{extension.mail}", (), frozenset({"voicemail.left"}), number, MAIL_DELAY_S
            )
            for number, extension in extensions.items()
            if extension.mail
        )
        return self.records.receivers + mailed

    def named_agents(self) -> dict[str, Agent]:
        """Returns all agents by the names of their tables."""
        return {"agent": self.agent} | {f"agents.{n}": one for n, one in self.agents.items()}

    def agent_called(self, name: str) -> Agent | None:
        """Returns the named agent, "agent" being [agent]; None if there is none."""
        return self.agents.get(name, self.agent if name == DEFAULT else None)

    def analysed_by(self, agents: Iterable[str]) -> str:
        """Returns the first of a call's agents that has an analysis; "" if none has."""
        for name in agents:
            agent = self.agent_called(name)
            if agent is not None and agent.analysis is not None:
                return name
        return ""

    def _faults_of_phones(self) -> Iterator[str]:
        for index, route in enumerate(self.sip.routes if self.sip is not None else ()):
            if route.agent and route.agent not in self.agents:
                yield f"sip.routes.{index}.agent: no agent is called {route.agent!r}"
            if route.hours and route.hours not in self.hours:
                yield f"sip.routes.{index}.hours: there is no [hours.{route.hours}]"
            if route.callers and route.callers not in self.callers:
                yield f"sip.routes.{index}.callers: there is no [callers.{route.callers}]"
        if self.sip is not None and self.sip.recovery_seconds and not self.server.redis:
            yield "sip.recovery_seconds needs redis of [server]"
        yield from self._faults_of_extensions()

    def _faults_of_extensions(self) -> Iterator[str]:
        for number, extension in (self.sip.extensions if self.sip is not None else {}).items():
            where, agent = f"sip.extensions.{number}", self.agents.get(extension.voicemail)
            if extension.voicemail and agent is None:
                yield f"{where}.voicemail: no agent is called {extension.voicemail!r}"
            elif agent is not None and agent.kind != VOICEMAIL.name:
                words = f'{extension.voicemail!r} takes no messages: kind = "{VOICEMAIL.name}"'
                yield f"{where}.voicemail: {words}"
            if extension.mail and not (self.smtp.host and self.records.url):
                yield f"{where}.mail: needs host of [smtp], and [records] url, where mail waits"
            if extension.mail and not extension.voicemail:
                yield f"{where}.mail: needs voicemail, of which it sends the messages"

    def faults_between_agents(
        self, kind_of: Callable[[str], AgentKind | None] = kinds.kind_of
    ) -> Iterator[str]:
        """Yields what is wrong with fallbacks and hand-overs; a kind that is None may be any."""
        for where, agent in self.named_agents().items():
            kind = kind_of(agent.kind)
            if agent.fallback:
                other = self.agents.get(agent.fallback)
                of_other = None if other is None else kind_of(other.kind)
                if other is None:
                    yield f"{where}.fallback: no agent is called {agent.fallback!r}"
                elif other is agent or (kind and of_other and not of_other.stands_in_for(kind)):
                    yield f"{where}.fallback: {agent.fallback!r} cannot answer in its place"
            for target, fault in _transfers(where, agent):
                if target in self.agents:
                    yield fault(f'{target!r} is an agent: write hand_over = "{target}"')
            for name, fault in _hand_overs(where, agent):
                other = self.agent_called(name)
                of_other = None if other is None else kind_of(other.kind)
                if other is None:
                    yield fault(f"no agent is called {name!r}")
                elif other is agent:
                    yield fault(f"{name!r} is the agent itself")
                elif of_other is not None and not of_other.converses:
                    yield fault(f"{name!r} cannot take a call over")

    def _faults_of_tools(self) -> Iterator[str]:
        for where, agent in self.named_agents().items():
            for index, tool in enumerate(agent.tools):
                if isinstance(tool, McpTools) and tool.mcp not in self.mcp:
                    there = ", ".join(self.mcp) or "none"
                    words = f"no MCP server is called {tool.mcp!r} (there: {there})"
                    yield f"{where}.tools.{index}.mcp: {words}"

    def _faults_of_analyses(self) -> Iterator[str]:
        for where, agent in self.named_agents().items():
            if agent.analysis is not None and not (self.records.url and self.records.words):
                yield f"{where}.analysis: needs [records] url and words: it reads what is kept"

    def _faults_of_transfers(self) -> Iterator[str]:
        carriers = {carrier.name for carrier in self.carriers}
        for name, one in self.transfers.items():
            yield from faults_of_ringing(f"transfers.{name}", one, one.to, self.sip, carriers)
        for name, queue in self.queues.items():
            people = queue.members
            yield from faults_of_ringing(f"queues.{name}", queue, people, self.sip, carriers)
            if queue.overflow.startswith(AGENT):
                yield from self._faults_of_overflow(f"queues.{name}.overflow", queue.overflow)
        there = ", ".join(self.queues) or "none"
        for where, agent in self.named_agents().items():
            for key in ("transfers", "gives_up_to"):
                given = getattr(agent, key)
                for target in (given,) if isinstance(given, str) else given:
                    name = target.removeprefix(PREFIX)
                    if name != target and "*" not in name and name not in self.queues:
                        yield f"{where}.{key}: no queue is called {name!r} (there: {there})"

    def _faults_of_overflow(self, where: str, target: str) -> Iterator[str]:
        name = target.removeprefix(AGENT)
        agent = self.agent_called(name)
        kind = None if agent is None else kinds.OURS.get(agent.kind)
        if agent is None:
            yield f"{where}: no agent is called {name!r}"
        elif kind is not None and not kind.converses and kind is not VOICEMAIL:
            yield f"{where}: {name!r} cannot take a call over"

    def _faults_of_tenants(self) -> Iterator[str]:
        trunks = [trunk.name for trunk in self.sip.trunks] if self.sip is not None else []
        yield from faults_of_tenants(
            self.tenants,
            {
                "agents": [DEFAULT, *self.agents],
                "trunks": trunks,
                "carriers": [carrier.name for carrier in self.carriers],
                "queues": list(self.queues),
            },
            self.server,
        )
        for index, hook in enumerate(self.records.webhooks):
            if hook.tenant and hook.tenant not in self.tenants:
                yield f"records.webhooks.{index}.tenant: there is no [tenants.{hook.tenant}]"
        yield from faults_between(self.tenants, (*self._ways_in(), *self._ways_on()))

    def _ways_in(self) -> Iterator[Way]:
        """Yields how calls come to their first agent, and whose they are by then."""
        tenants = self.tenants
        for index, carrier in enumerate(self.carriers):
            its = owner(tenants, "carriers", carrier.name)
            yield Way(f"carriers.{index}.agent", its, "agents", carrier.agent or DEFAULT)
        if self.sip is None:
            return
        for index, route in enumerate(self.sip.routes):
            if not route.extension and not route.refuse:
                its = owner(tenants, "trunks", route.trunk) or owner_of_number(
                    tenants, route.called
                )
                yield Way(f"sip.routes.{index}.agent", its, "agents", route.agent or DEFAULT)
        for index, trunk in enumerate(() if self.sip.routes else self.sip.trunks):
            its = owner(tenants, "trunks", trunk.name)
            yield Way(f"sip.trunks.{index}: without routes", its, "agents", DEFAULT)
        for number, extension in self.sip.extensions.items():
            its = owner_of_number(tenants, number)
            where = f"sip.extensions.{number}.voicemail"
            yield Way(where, its, "agents", extension.voicemail)

    def _ways_on(self) -> Iterator[Way]:
        """Yields how calls get from agents to other agents, and to queues."""
        for where, agent in self.named_agents().items():
            its = owner_of_agent(self.tenants, where.removeprefix("agents."))
            if agent.fallback:
                yield Way(f"{where}.fallback", its, "agents", agent.fallback, True)
            for name, fault in _hand_overs(where, agent):
                yield Way(fault("")[:-2], its, "agents", name, True)
            given = agent.gives_up_to
            for target in (*agent.transfers, *((given,) if isinstance(given, str) else given)):
                if target.startswith(PREFIX):
                    yield Way(where, its, "queues", target.removeprefix(PREFIX), True)
                yield from self._ways_of_transfer(target, its)
        for name, queue in self.queues.items():
            where, its = f"queues.{name}", owner(self.tenants, "queues", name)
            yield from self._ways_to(where, "members", its, queue, queue.members)
            yield from self._ways_of_transfer(queue.overflow, its)
            if queue.overflow.startswith(AGENT):
                to = queue.overflow.removeprefix(AGENT)
                yield Way(f"{where}.overflow", its, "agents", to, True)
        for name, hours in self.hours.items():
            for one in hours.agents:
                its = owner_of_agent(self.tenants, one)
                yield Way(f"hours.{name}.otherwise", its, "agents", hours.otherwise, True)

    def _ways_of_transfer(self, name: str, its: str) -> Iterator[Way]:
        if (one := self.transfers.get(name)) is not None:
            yield from self._ways_to(f"transfers.{name}", "to", its, one, one.to)

    def _ways_to(
        self, where: str, key: str, its: str, ringing: Ringing, people: Iterable[str]
    ) -> Iterator[Way]:
        """Yields how the calls of a tenant get to people, and over what."""
        yield Way(f"{where}.trunk", its, "trunks", ringing.trunk)
        yield Way(f"{where}.carrier", its, "carriers", ringing.carrier)
        extensions = self.sip.extensions if self.sip is not None else {}
        for address in people:
            number = ringing.extension_of(split_extension(address)[0], extensions)
            yield Way(f"{where}.{key}", its, "numbers", number)

    def _faults_of_bucket(self) -> Iterator[str]:
        if self.s3.bucket and not self.records.url:
            yield "s3.bucket: needs [records] url: the calls that are kept say where recordings lie"

    def _faults_of_programs(self) -> Iterator[str]:
        rings = self.sip.ring_seconds if self.sip is not None else 60
        for where, agent in self.named_agents().items():
            kind = kinds.OURS.get(agent.kind)
            if kind is not None and not kind.answers and agent.accept_seconds > rings:
                words = f"{where}.accept_seconds is longer than phones ring"
                yield f"{words} ([sip] ring_seconds, {rings:g})"

    def _faults_of_carriers(self) -> Iterator[str]:
        names = [carrier.name for carrier in self.carriers]
        if twice := {name for name in names if names.count(name) > 1}:
            yield f"carriers: two are called {', '.join(sorted(twice))}"
        for index, carrier in enumerate(self.carriers):
            if carrier.agent and carrier.agent not in self.agents:
                yield f"carriers.{index}.agent: no agent is called {carrier.agent!r}"
            if carrier.insecure and not self.server.local:
                yield f"carriers.{index}: {carrier.name} is insecure: for a local server only"

    def access(self, *, local: bool | None = None, gateway: bool = False) -> AccessPolicy:
        """Returns the access policy. `local` is whether only this machine can connect, if [server]
        host does not determine it; `gateway` means a server without calls."""
        server = self.server
        for_speech: frozenset[Scope] = frozenset(("speech",))
        keys = [Key(key.name, key.key, for_speech) for key in self.speech.keys]
        if server.api_key:
            keys.append(Key("server", server.api_key))
        public = {urlsplit(c.public_url).netloc for c in self.carriers if c.public_url}
        with_key = Role.SPEECH if gateway else Role.OPERATOR
        extensions = self.sip.extensions if self.sip is not None else {}
        return AccessPolicy(
            local=server.local if local is None else local,
            names=server.names,
            origins=server.origins,
            keys=tuple(keys),
            admin_key=server.admin_key,
            reader_key=server.reader_key,
            desks={number: extension.password for number, extension in extensions.items()},
            tenants=tuple(
                TenantKeys(name, tenant.key, tenant.reader_key)
                for name, tenant in self.tenants.items()
            ),
            admin_listen=server.admin_listen,
            metrics=Role.PUBLIC if server.metrics == "open" else with_key,
            proxies=tuple(map(ipaddress.ip_network, server.proxies)),
            carrier_hosts=frozenset(public),
        )


def _hand_overs(where: str, agent: Agent) -> Iterator[tuple[str, Callable[[str], str]]]:
    """Yields the names of agents to which one may hand calls over, by its model or its flow, and
    what puts the place before the words of a fault."""
    for name in agent.handoffs:
        yield name, lambda words: f"{where}.handoffs: {words}"
    flow = agent.loaded_flow
    for path, action in flow.actions() if flow is not None else ():
        if flow is not None and action.hand_over:
            yield action.hand_over, partial(_of_flow, where, flow, (*path, "hand_over"))


def _transfers(where: str, agent: Agent) -> Iterator[tuple[str, Callable[[str], str]]]:
    """Yields where an agent's flow transfers calls to, and what puts the place before the words
    of a fault."""
    flow = agent.loaded_flow
    for path, action in flow.actions() if flow is not None else ():
        if flow is not None and action.transfer:
            yield action.transfer, partial(_of_flow, where, flow, (*path, "transfer"))


def _of_flow(where: str, flow: Flow, path: KeyPath, words: str) -> str:
    return f"{where}.flow: {flow.placed(path, words)}"


def _keys(kind: Any) -> tuple[str, ...]:
    """Returns the keys of a section that has fixed ones."""
    for part in (kind, *get_args(kind)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return tuple(part.model_fields)
        if isinstance(part, type) and is_dataclass(part):
            return tuple(field.name for field in fields(part))
    return ()


def _path(section: str, key: str, keys: Iterable[str]) -> tuple[str, ...]:
    """Returns where a variable's value goes. OFFHOOK_TENANTS_ACME_KEY is `key` of [tenants.acme];
    the - of a name is _ there."""
    if section == "tenants":
        for known in sorted(keys, key=len, reverse=True):
            if key.endswith(f"_{known}"):
                name = key.removesuffix(f"_{known}").replace("_", "-")
                return section, name, known
    return section, key


def _text_of(file: Path) -> str:
    """Returns the text of a file in UTF-8, with or without a byte order mark. Raises
    ConfigError."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ConfigError(f"{file}: is UTF-16: save it as UTF-8")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}:{line}: is not UTF-8: save it as UTF-8") from error


def file_of(path: Path | None) -> Path | None:
    """Returns the file that `load` reads: `path`, otherwise offhook.toml if it exists."""
    return path or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)


def load(path: Path | None, environment: Mapping[str, str] = os.environ) -> Config:
    """Loads the file (see `file_of`) and the environment. Raises ConfigError with all errors."""
    file = file_of(path)
    read = read_toml(_text_of(file)) if file is not None else TomlText()
    places: dict[KeyPath, str] = {at: f"{file}:{line}" for at, line in read.lines.items()}
    faults = [f"{file}:{line}: {words}" for line, words in read.faults]
    sections = {name: _keys(field.annotation) for name, field in Config.model_fields.items()}
    values, of_variables = overrides(environment, sections)
    for (section, key), (name, value) in values.items():
        into = _path(section, key, sections[section])
        table: Any = read.table
        for at in into[:-1]:
            table = table.setdefault(at, {}) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            where = ".".join(into[:-1])
            of_variables.append(f"{name}: [{where}] is not a table to which a key can be added")
            continue
        table[into[-1]] = value
        for below in [place for place in places if place[: len(into)] == into]:
            del places[below]
        places[into] = name
    faults += of_variables
    faults += mistaken_types(read.table, Config, places)
    misread = misread_names(read.table, Config)
    faults += [placed(one.at, one.words, places) for one in misread]
    try:
        config = Config.model_validate(read.table)
        config._places = places
    except ValidationError as error:
        told = [key for one in misread for key in one.explains]
        faults += faults_of(error, Config, places, told=told)
    if faults:
        raise ConfigError("\n".join(sorted(dict.fromkeys(faults), key=_line_of)))
    return config


def _line_of(fault: str) -> int:
    """Returns the line of the file that a fault begins with; faults without one come last."""
    found = re.match(r"[^ ]*?:(\d+): ", fault)
    return int(found[1]) if found else sys.maxsize
