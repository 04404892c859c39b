"""Opens the doors of phones, carriers and programs."""

from typing import Protocol

from loguru import logger

from offhook.media.leg import LegError
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.sip.calls_io import Host as SipHost
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.trunks.trunks import SipSettings
from offhook.web.config.config import Config, ConfigError
from offhook.web.edge.admission_io import CallAdmission
from offhook.web.edge.calls.program_calls_io import ProgramCalls
from offhook.web.edge.calls.records_io import CallRecords
from offhook.web.edge.carriers.calls_io import Host as CarrierHost
from offhook.web.edge.carriers.carriers_io import Carriers
from offhook.web.edge.placing.requests import callers_allowed, is_risky
from offhook.web.edge.route_conditions import RouteConditions
from offhook.web.http.metrics import Metrics
from offhook.web.speech_api.server_io import SpeechServer
from offhook.web.workers.engines.call_engines_io import CallEngines


class PhonesEdge(SipHost, Protocol):
    """The edge of phones."""

    config: Config
    metrics: Metrics
    programs: ProgramCalls
    records: CallRecords
    admission: CallAdmission
    ready: bool
    draining: bool


class CarriersEdge(CarrierHost, Protocol):
    """The edge of carriers."""

    config: Config
    programs: ProgramCalls
    admission: CallAdmission


async def open_phones(settings: SipSettings, edge: PhonesEdge) -> SipEndpoint:
    """Raises ConfigError."""
    sip = SipEndpoint(settings, edge)
    sip.hooks.trunk_turned = edge.records.trunk_turned
    try:
        await sip.start()
    except (OSError, ValueError) as error:
        await sip.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"sip: {reason} (offhook doctor says more)") from error
    sip.user_agent.accepts_calls = lambda: edge.ready and not edge.draining
    sip.hooks.decision = edge.programs.decision
    sip.hooks.conditions = RouteConditions(lambda: edge.config)
    sip.hooks.tenants = edge.admission.tenants
    edge.metrics.add_phone_collector(sip)
    if settings.extensions:
        edge.records.serve_extensions(sip)
    level = "WARNING" if is_risky(settings) else "INFO"
    logger.log(level, "who may call by phone: {}", callers_allowed(settings))
    return sip


async def open_carriers(settings: tuple[CarrierSettings, ...], edge: CarriersEdge) -> Carriers:
    """Raises ConfigError."""
    carriers = Carriers(settings, edge.config.server.host, edge)
    try:
        await carriers.start()
    except (OSError, ValueError, LegError) as error:
        await carriers.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"carriers: {reason}") from error
    carriers.calls.decision = edge.programs.decision
    carriers.calls.tenants = edge.admission.tenants
    return carriers


def open_speech_api(config: Config, engines: CallEngines, metrics: Metrics) -> SpeechServer:
    """Returns the speech API on the engines of the calls, which have priority."""
    tts = config.tts
    speech = SpeechServer(
        *(config.speech, *engines.for_programs(), metrics.registry, tts.audio_cache),
        audio_cache_mb=tts.audio_cache_mb,
    )
    speech.lexicon = tts.pronunciations
    speech.calls_come_first = True
    speech.admission.shares = config.server.shares
    return speech
