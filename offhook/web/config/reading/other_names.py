"""What other servers call a key, for whoever writes the name from there: no letters show what was
meant."""

from collections.abc import Iterable

OTHERS = {
    "extensions": "phones users accounts",
    "trunks": "server username password registrar domain proxy trunk provider gateway",
    "routes": "dialplan inbound",
    "udp tcp": "port ports listen_port sip_port transport protocol",
    "udp": "udp_port",
    "tcp": "tcp_port",
    "tls": "tls_port",
    "rtp_ports": "rtp rtp_port rtp_port_min rtp_port_max rtp_min rtp_max media_ports port_range",
    "public_address": "external_ip external_address advertised_address nat_ip",
    "ice_servers": "stun turn stun_server turn_server turn_servers",
    "host": "bind listen listen_address address ip server smtp_host",
    "sender": "from from_address",
    "username": "user login account auth_user",
    "password": "secret passwd pass",
    "name": "id title",
    "server": "host registrar proxy domain redis metrics http web",
    "called": "number to did dialled extension_number",
    "members": "agents people users",
    "ring_seconds": "timeout ring_timeout",
    "first_token_seconds": "timeout request_timeout",
    "processes": "workers threads",
    "origins": "cors cors_origins",
    "admin_key": "password admin_password token admin_token secret",
    "keys": "api_key api_keys key",
    "kind": "type provider backend llm",
    "engine": "type provider backend name service",
    "base_url": "endpoint api_base openai_base_url",
    "url": "base_url endpoint api_base database db dsn path address",
    "voice": "speaker voice_id",
    "speed": "rate speaking_rate",
    "instructions": "prompt system_prompt system system_message persona",
    "greeting": "first_message welcome welcome_message begin_message intro",
    "goodbye": "goodbye_message end_message farewell",
    "tools": "functions",
    "max_minutes": "max_duration max_duration_seconds max_call_duration",
    "days": "retention retention_days keep_days",
    "directory": "path dir folder output",
    "key": "encryption_key",
    "json_lines": "json format",
    "level": "log_level verbosity",
    "command": "args cmd",
    "asr": "stt transcriber recognizer speech_to_text",
    "tts": "synthesizer text_to_speech",
    "agent": "llm assistant bot",
    "turn": "vad endpointing",
    "log": "logging logger",
    "records": "database db storage",
    "carriers": "twilio telnyx plivo vonage",
    "smtp": "mail email",
}
"""The names, by the keys that are meant."""
_MEANT: dict[str, list[list[str]]] = {}
for _keys, _names in OTHERS.items():
    for _name in _names.split():
        _MEANT.setdefault(_name, []).append(_keys.split())


def here(name: str, keys: Iterable[str]) -> list[str]:
    """Returns which of a table's keys, if any, are meant by a name from elsewhere."""
    meant = _MEANT.get(name.lower().replace("-", "_"), [])
    there = set(keys)
    return next((one for one in meant if there.issuperset(one)), [])
