"""Leases of edges and their saved phone calls in Redis.

    offhook:sip:leases        sorted set: edge → when its lease runs out, ms of Redis's clock
    offhook:sip:calls:EDGE    hash: call → number of claims, "|", the saved call
    offhook:sip:claimed:EDGE  set: calls that others have claimed from it

Claims are scripts, so each call is claimed by one edge.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.voice.audio_cache_io import redis_client
from offhook.web.config.config import ConfigError
from offhook.web.edge.resume.recovery import MAX_CLAIMS
from offhook.web.edge.resume.store_io import SAVED, TAKEN, UnexpectedReply

if TYPE_CHECKING:
    from redis.asyncio import Redis

LEASES = "offhook:sip:leases"
CALLS = "offhook:sip:calls:"
CLAIMED = "offhook:sip:claimed:"
TTL_S = 180
"""Expiry in s of the calls of an edge that has died, if no other one can claim them."""
MAX_EDGES = 16
"""Maximum edges whose calls one claim looks for; those of further ones are claimed in the next
round."""

_NOW = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"

_RENEW = (
    _NOW
    + """
if ARGV[2] ~= '0' then redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1]) end
redis.call('EXPIRE', KEYS[2], ARGV[3])
return {redis.call('HLEN', KEYS[2]), redis.call('SMEMBERS', KEYS[3])}
"""
)

# An edge that lives on must not save a call that another one has claimed.
_SAVE = f"""
if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then return '{TAKEN.decode()}' end
redis.call('HSET', KEYS[1], ARGV[1], '0|' .. ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return '{SAVED.decode()}'
"""

# pcall: a key of another type is passed over, or it would stop all claims.
_CLAIM = (
    _NOW
    + """
local found, limit = {}, tonumber(ARGV[2])
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. now, 'LIMIT', 0, ARGV[5])
for _, edge in ipairs(due) do
  if edge ~= ARGV[1] then
    local from, marks = ARGV[6] .. edge, ARGV[7] .. edge
    local calls = redis.pcall('HKEYS', from)
    if calls.err then calls = {} end
    local left = #calls
    for _, call in ipairs(calls) do
      if #found >= limit then break end
      local value = redis.call('HGET', from, call)
      local claims, saved = string.match(value, '^(%d%d?)|(.*)$')
      redis.call('HDEL', from, call)
      redis.pcall('SADD', marks, call)
      redis.call('EXPIRE', marks, ARGV[3])
      left = left - 1
      if claims and tonumber(claims) < tonumber(ARGV[4]) then
        redis.call('HSET', KEYS[2], call, (claims + 1) .. '|' .. saved)
        redis.call('EXPIRE', KEYS[2], ARGV[3])
        found[#found + 1] = {call, saved}
      else
        found[#found + 1] = {call, ''}
      end
    end
    if left == 0 then redis.call('ZREM', KEYS[1], edge) end
  end
end
return found
"""
)


class Renewal(NamedTuple):
    held: int
    """Calls that are saved under our lease."""
    claimed: list[str]
    """Calls that others have claimed from us."""
    refused: list[str]
    """Of those saved now, the calls that others have claimed."""


class RecoveryStore:
    """The lease of the edge `name` and its saved calls. Its coroutines raise TimeoutError, OSError,
    UnexpectedReply or what redis-py raises. Raises ConfigError if redis-py is missing or the URL is
    invalid."""

    def __init__(self, url: str, name: str) -> None:
        try:
            self._redis: Redis = redis_client(url)
        except EngineError as error:
            raise ConfigError(f"server.redis: {error}") from error
        self._name = name
        self._calls, self._claimed = CALLS + name, CLAIMED + name

    async def close(self) -> None:
        with suppress(Exception):
            await self._redis.aclose()

    async def renew(self, lease_s: float, states: Mapping[str, bytes | None]) -> Renewal:
        """Renews the lease, unless `lease_s` is 0, and saves calls; None deletes one."""
        written = [(call, state) for call, state in states.items() if state is not None]
        async with self._redis.pipeline(transaction=False) as pipe:
            for call, state in written:
                pipe.eval(_SAVE, 2, self._calls, self._claimed, call, state, TTL_S)
            for call in states.keys() - dict(written).keys():
                pipe.hdel(self._calls, call)
            keys = LEASES, self._calls, self._claimed
            pipe.eval(_RENEW, 3, *keys, self._name, round(lease_s * 1000), TTL_S)
            *results, renewed = await pipe.execute()
        match renewed:
            case [int() as held, claimed]:
                names = _names(claimed)
            case _:
                raise UnexpectedReply(renewed)
        kept = results[: len(written)]
        if len(results) != len(states) or any(result not in (SAVED, TAKEN) for result in kept):
            raise UnexpectedReply(results)
        refused = [call for (call, _), result in zip(written, kept, strict=True) if result == TAKEN]
        return Renewal(held, names, refused)

    async def settled(self, calls: Sequence[str]) -> None:
        """Forgets that others have claimed these calls from us: this edge has left them."""
        await _done(self._redis.srem(self._claimed, *calls))

    async def claim(self, limit: int) -> list[tuple[str, bytes]]:
        """Claims up to `limit` calls of edges whose lease has run out. A call that cannot be
        continued, or was claimed too often, comes with b""."""
        arguments = (self._name, limit, TTL_S, MAX_CLAIMS, MAX_EDGES, CALLS, CLAIMED)
        found = await _done(self._redis.eval(_CLAIM, 2, LEASES, self._calls, *arguments))
        if not isinstance(found, list) or len(found) > limit:
            raise UnexpectedReply(found)
        return [_call(entry) for entry in found]

    async def held(self) -> list[tuple[str, bytes]]:
        """Returns the calls that are saved under our lease, as `claim` does."""
        found = await _done(self._redis.hgetall(self._calls))
        if not isinstance(found, dict):
            raise UnexpectedReply(found)
        entries = [_call(entry) for entry in found.items()]
        return [(call, saved.partition(b"|")[2]) for call, saved in entries]

    async def offer(self) -> None:
        """Ends the lease now, so that others claim the calls saved under it."""
        await _done(self._redis.zadd(LEASES, {self._name: 0}))

    async def withdraw(self) -> list[str]:
        """Deletes the lease and what is saved under it; returns the calls that others have claimed
        before that."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(self._calls)
            pipe.zrem(LEASES, self._name)
            pipe.smembers(self._claimed)
            *_, claimed = await pipe.execute()
        return _names(claimed)


async def _done(reply: Any) -> Any:
    """redis-py types each reply as one of its two clients'."""
    return await reply


def _names(found: object) -> list[str]:
    if not isinstance(found, list | set) or not all(isinstance(name, bytes) for name in found):
        raise UnexpectedReply(found)
    return [name.decode(errors="replace") for name in found]


def _call(entry: object) -> tuple[str, bytes]:
    match entry:
        case [bytes() as call, bytes() as saved]:
            return call.decode(errors="replace"), saved
    raise UnexpectedReply(entry)
