"""The front door: every route, and everything that should not get in."""

import asyncio
import json
import re
import signal
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from aiohttp import WSServerHandshakeError, web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from offhook.signaling import peer_io
from offhook.signaling.peer_io import PeerLeg
from offhook.signaling.smallwebrtc import MAX_BODY_BYTES, parse_offer
from offhook.web.config.config import Agent, Config
from offhook.web.config.engines import Tts
from offhook.web.config.server import Server, WebRtc
from offhook.web.edge import server_io
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.page import page_io
from offhook.web.edge.refusals import RETRY_AFTER_S, Busy
from offhook.web.edge.server_io import application
from offhook.web.http.access import EXPOSED
from offhook.web.http.shares import by_address
from tests.attack import pages
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = Config(
    webrtc=WebRtc(addresses=["127.0.0.1"]), server=Server(port=0, max_calls=2, drain_seconds=0)
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running():
    """One edge with its engines for all tests of this file."""
    import aioice.ice

    host_addresses = aioice.ice.get_host_addresses
    edge = Edge(CONFIG)
    await edge.start()
    yield edge
    await edge.close()
    aioice.ice.get_host_addresses = host_addresses


@pytest_asyncio.fixture(loop_scope="module")
async def edge(running):
    yield running
    running.draining, running.config = False, CONFIG
    for leg in running.legs:
        leg.close("test over")
    async with asyncio.timeout(HANGS_S):
        while running.calls:
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture(loop_scope="module")
async def client(edge):
    async with TestClient(TestServer(application(edge))) as client:
        yield client


def with_server(**fields):
    return CONFIG.model_copy(update={"server": CONFIG.server.model_copy(update=fields)})


@asynccontextmanager
async def offering():
    """The offer of a caller that never connects."""
    leg = PeerLeg("caller")
    yield {"sdp": await leg.offer(), "type": "offer", "pc_id": None, "restart_pc": False}
    await leg.hang_up("test over")


async def taken(client, offer):
    response = await client.post("/api/offer", json=offer)
    assert response.status == 200, await response.text()
    return await response.json()


async def refused(response, status):
    assert response.status == status
    assert response.content_type == "application/json"
    return (await response.json())["error"]


# --- what is served ---


async def test_the_page_comes_with_its_policy(client):
    response = await client.get("/")
    assert response.status == 200
    assert response.content_type == "text/html"
    policy = dict(d.strip().split(" ", 1) for d in response.headers[CSP].split(";"))
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    nothing = ("default-src", "frame-ancestors", "base-uri", "form-action", "trusted-types")
    assert {policy[name] for name in nothing} == {"'none'"}
    assert policy["require-trusted-types-for"] == "'script'"
    assert not re.search(r"unsafe|\*|https?:|data:", response.headers[CSP])
    assert response.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "microphone=(self)" in response.headers["Permissions-Policy"]
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cache-Control"] == "no-cache"


CSP = "Content-Security-Policy"


async def test_no_answer_is_a_page_that_runs_what_it_was_sent(client):
    base = str(client.make_url("")).rstrip("/")
    assert await pages.be_reflected(base, 30) == "runs nowhere"


async def test_other_sites_can_load_the_button_and_nothing_else(client):
    policies = {
        path: (await client.get(path)).headers["Cross-Origin-Resource-Policy"]
        for path in ("/", "/page/app.js", "/status", "/metrics", "/v1/models", "/embed.js")
    }
    assert policies.pop("/embed.js") == "cross-origin"
    assert set(policies.values()) == {"same-origin"}


async def test_every_file_that_the_page_names_is_there(client):
    for path in page_io.PAGE.iterdir():
        response = await client.get(f"/page/{path.name}")
        assert response.status == 200
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    for path in (
        "/page/",
        "/page/../server_io.py",
        "/page/%2e%2e/server_io.py",
        "/page//etc/passwd",
    ):
        assert (await client.get(path)).status in (403, 404)


@pytest.mark.parametrize("path", ["/", "/page/app.js", "/page/style.css"])
async def test_the_page_is_sent_compressed_and_once(client, path):
    packed = await client.get(path)
    assert packed.headers["Content-Encoding"] == "gzip"
    assert packed.headers["Cache-Control"] == "no-cache"
    assert packed.headers["Vary"] == "Accept-Encoding"
    plain = await client.get(path, headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers
    assert await plain.text() == await packed.text()
    assert packed.content_length < 0.5 * plain.content_length
    again = await client.get(path, headers={"If-None-Match": packed.headers["ETag"]})
    assert again.status == 304
    assert await again.read() == b""
    other = await client.get(path, headers={"If-None-Match": '"another"'})
    assert other.status == 200


async def test_status_and_health(client, edge):
    status = await (await client.get("/status")).json()
    answers = {
        "agent": "frontdesk",
        "title": "The front desk answers",
        "hears": "pocketsphinx",
        "speaks": "flite",
    }
    about = {"status": "ready", "transports": ["webrtc"], "answers": answers}
    assert status == {**about, "operator": True}  # of this machine, as there is no key
    health = await client.get("/healthz")
    assert health.status == 200
    assert await health.json() == {"status": "ok", "overloaded": False}
    ready = await client.get("/readyz")
    assert ready.status == 200
    lines = {"calls": 0, "max_calls": 2, "overloaded": False}
    assert await ready.json() == {"ready": True, **lines}


async def test_not_ready_before_the_engines_are_loaded_and_while_draining(client, edge):
    edge.draining = True
    assert (await client.get("/readyz")).status == 503
    assert (await client.get("/healthz")).status == 200
    async with TestClient(TestServer(application(Edge(CONFIG)))) as early:
        response = await early.get("/readyz")
        assert response.status == 503
        assert (await response.json())["ready"] is False
        assert (await early.get("/health")).status == 503
        assert (await (await early.get("/status")).json())["answers"] is None
        response = await early.post("/start", json={})
        assert "being loaded" in await refused(response, 503)
        assert (await response.json())["reason"] == "loading"


async def test_a_server_whose_packets_are_late_says_so_until_they_are_not(
    client, edge, monkeypatch
):
    monkeypatch.setattr(edge.clock, "recent_lateness_ms", lambda: 1000.0)
    counted = edge.metrics.refused.labels("late")
    before = counted._value.get()
    async with offering() as one, offering() as two:
        await taken(client, one)  # nobody hears that it is late
        response = await client.post("/api/offer", json=two)
        assert "overloaded" in await refused(response, 503)
        assert (await response.json())["reason"] == "overloaded"
        assert response.headers["Retry-After"]
        assert counted._value.get() == before + 1
        for path in ("/healthz", "/readyz"):
            answer = await client.get(path)
            assert answer.status == 200
            assert (await answer.json())["overloaded"] is True
        assert "offhook_overloaded 1.0" in await (await client.get("/metrics")).text()
        with pytest.raises(WSServerHandshakeError) as late:
            await client.ws_connect("/v1/realtime?model=default")
        assert late.value.status == 503
        assert late.value.headers["Retry-After"]
        monkeypatch.setattr(edge.clock, "recent_lateness_ms", lambda: 5.0)
        assert (await (await client.get("/healthz")).json())["overloaded"] is False
        await taken(client, two)


async def test_metrics_parse_and_have_our_series(client):
    response = await client.get("/metrics")
    assert response.content_type == "text/plain"
    names = {f.name for f in text_string_to_metric_families(await response.text())}
    assert {
        "offhook_calls_in_progress",
        "offhook_calls_refused",
        "offhook_response_seconds",
        "offhook_response_span_seconds",
        "offhook_tick_lateness_seconds",
        "offhook_line_mos",
    } <= names


async def test_start_gives_a_session_and_ice_servers_on_demand(client, edge):
    servers = [{"urls": "stun:s.example"}, {"urls": "turn:t.example", "username": "u"}]
    edge.config = Config(webrtc=WebRtc(ice_servers=servers))
    first = await (await client.post("/start", json={})).json()
    asked = await client.post("/start", json={"enableDefaultIceServers": True})
    second = await asked.json()
    assert first["sessionId"] != second["sessionId"]
    assert first["iceConfig"] == {"iceServers": []}
    assert second["iceConfig"] == {"iceServers": servers}


# --- calls ---


@pytest.mark.parametrize("prefix", ["", "/sessions/3f0c"])
async def test_an_offer_is_answered_and_candidates_are_taken(client, edge, prefix):
    async with offering() as offer:
        response = await client.post(f"{prefix}/api/offer", json=offer)
        answer = await response.json()
        assert answer["type"] == "answer"
        assert answer["sdp"].startswith("v=0")
        assert list(edge.calls) == [answer["pc_id"]]
        candidate = {"candidate": "", "sdp_mid": "0", "sdp_mline_index": 0}
        body = {"pc_id": answer["pc_id"], "candidates": [candidate]}
        response = await client.patch(f"{prefix}/api/offer", json=body)
        assert await response.json() == {"status": "success"}


async def test_a_renewed_offer_stays_one_call(client, edge):
    async with offering() as offer:
        answer = await taken(client, offer)
        again = await taken(client, {**offer, "pc_id": answer["pc_id"]})
    assert again["pc_id"] == answer["pc_id"]
    assert len(edge.legs) == 1


async def test_a_restart_is_a_new_call_and_ends_the_old(client, edge):
    async with offering() as offer:
        old = (await taken(client, offer))["pc_id"]
        leg = edge.calls[old].leg
        new = (await taken(client, {**offer, "pc_id": old, "restart_pc": True}))["pc_id"]
    assert new != old
    assert leg.closed == "the caller reconnects"


async def test_a_broken_offer_is_400_and_leaves_no_call(client, edge):
    for sdp in ("", "v=0", "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\n", "\ud800", "x" * 50_000):
        response = await client.post("/api/offer", json={"sdp": sdp, "type": "offer"})
        assert "offer" in await refused(response, 400)
    assert not edge.legs


# --- what is refused ---


POSTS = ("/start", "/api/offer", "/sessions/x/api/offer")


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"null", b"[" * 10_000])
async def test_what_is_not_an_object_is_400(client, path, body):
    response = await client.post(path, data=body, headers={"Content-Type": "application/json"})
    assert "body is not" in await refused(response, 400)


async def test_a_wrong_type_is_named(client):
    response = await client.post("/api/offer", json={"sdp": 7, "type": "offer"})
    assert await refused(response, 400) == "sdp is not a str"
    response = await client.patch("/api/offer", json={"pc_id": "x", "candidates": [1]})
    assert "candidate" in await refused(response, 400)


@pytest.mark.parametrize("path", POSTS)
async def test_a_body_over_the_bound_is_413(client, path):
    body = json.dumps({"sdp": "x" * MAX_BODY_BYTES, "type": "offer"})
    response = await client.post(path, data=body, headers={"Content-Type": "application/json"})
    assert str(MAX_BODY_BYTES) in await refused(response, 413)


async def test_a_client_that_leaves_in_mid_body_is_no_fault_of_the_server(edge, caplog):
    runner = web.AppRunner(application(edge))  # TestServer cancels handlers, which `serve` does not
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    _, writer = await asyncio.open_connection(*runner.addresses[0])
    head = "POST /api/offer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
    await asyncio.sleep(0.1)
    writer.close()
    await asyncio.sleep(0.1)
    await runner.cleanup()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_an_unknown_pc_id_is_404(client):
    async with offering() as offer:
        response = await client.post("/api/offer", json={**offer, "pc_id": "nobody"})
        assert await refused(response, 404) == "unknown pc_id"
    response = await client.patch("/api/offer", json={"pc_id": "nobody", "candidates": []})
    assert await refused(response, 404) == "unknown pc_id"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_what_a_form_can_send_is_415(client, kind):
    for path in POSTS:
        response = await client.post(path, data=b"{}", headers={"Content-Type": kind})
        assert "application/json" in await refused(response, 415)


async def test_an_unknown_path_is_404_whatever_is_sent(client):
    for kind in ("text/plain", "application/json"):
        response = await client.post("/nothing", data=b"{}", headers={"Content-Type": kind})
        assert response.status == 404
    response = await client.post("/status", data=b"x", headers={"Content-Type": "text/plain"})
    assert response.status == 405


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7860", "localhost.evil.example", "[x"]
)
async def test_a_name_rebound_to_this_machine_is_403(client, host):
    for path in ("/", "/status", "/metrics", "/page/app.js"):
        response = await client.get(path, headers={"Host": host})
        assert response.status in (400, 403)
    response = await client.post("/start", json={}, headers={"Host": host})
    assert response.status in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:7860", "[::1]:7860"])
async def test_the_names_of_this_machine_are_let_in(client, host):
    assert (await client.get("/status", headers={"Host": host})).status == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_without_a_key_a_server_answers_to_its_own_names_whatever_it_listens_on(
    client, edge, host
):
    edge.config = with_server(host=host)
    for path in ("/", "/status", "/metrics", "/v1/models"):
        answer = await client.get(path, headers={"Host": "voice.example"})
        assert answer.status == 403
        assert "[server] names" in await answer.text()
        for name in ("192.0.2.7:7860", "[2001:db8::1]", "localhost"):
            assert (await client.get(path, headers={"Host": name})).status == 200
    for path in ("/healthz", "/readyz"):
        assert (await client.get(path, headers={"Host": "probe.example"})).status == 200
    edge.config = with_server(host=host, names=frozenset(("voice.example",)))
    assert (await client.get("/status", headers={"Host": "VOICE.example:1"})).status == 200
    edge.config = with_server(host=host, api_key="sesame")
    assert (await client.get("/status", headers={"Host": "another.example"})).status == 200


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        "Bearer sesame ",
        "bearer x",
        "Basic c2VzYW1l",
        "Bearer ü",
        "Bearer \udcff\udcfe",
    ],
)
async def test_without_the_key_it_is_401(client, edge, given):
    edge.config = with_server(api_key="sesame!")
    headers = {} if given is None else {"Authorization": given}
    for path in POSTS:
        response = await client.post(path, json={}, headers=headers)
        assert "API key" in await refused(response, 401)
    response = await client.patch("/api/offer", json={}, headers=headers)
    assert response.status == 401
    assert (await client.get("/readyz", headers=headers)).status == 200


async def test_bytes_that_are_no_text_in_the_key_are_401(client, edge):
    """Sent raw: no client library writes such a header."""
    edge.config = with_server(api_key="sesame!")
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(
        b"POST /start HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer \xff\xfe\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 401")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("key", ["sesame!", "clé"])
async def test_with_the_key_callers_come_in(client, edge, key):
    edge.config = with_server(api_key=key)
    response = await client.post("/start", json={}, headers={"Authorization": f"Bearer {key}"})
    assert response.status == 200


PAGE = "https://app.example"


@pytest.mark.parametrize("path", ["/start", "/api/offer", "/sessions/x/api/offer", "/v1/models"])
async def test_a_page_of_a_site_that_is_named_is_answered_in_full(client, edge, path):
    edge.config = with_server(origins=frozenset((PAGE,)), api_key="sesame")
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    wanted = "authorization,content-type,x-stainless-os"
    preflight = await client.options(
        path, headers={**asked, "Access-Control-Request-Headers": wanted}
    )
    assert preflight.status == 204
    assert preflight.headers["Access-Control-Allow-Origin"] == PAGE
    assert preflight.headers["Access-Control-Allow-Headers"] == wanted
    assert "PATCH" in preflight.headers["Access-Control-Allow-Methods"]
    # The refusal too: a page that cannot read it cannot say what is wrong.
    for headers in (asked, {**asked, "Authorization": "Bearer sesame"}):
        answer = await client.request(
            "GET" if path == "/v1/models" else "POST", path, json={}, headers=headers
        )
        assert answer.status == (401 if headers is asked else answer.status)
        assert answer.status != 403
        assert answer.headers["Access-Control-Allow-Origin"] == PAGE
        assert answer.headers["Access-Control-Expose-Headers"] == EXPOSED
        assert answer.headers.getall("Vary") == ["Origin"]
    for origin in ("https://app.example.evil", "http://app.example", "null"):
        refused_page = await client.options(path, headers={**asked, "Origin": origin})
        assert refused_page.status == 403
        assert "[server] origins" in await refused_page.text()
        assert "Access-Control-Allow-Origin" not in refused_page.headers
    answer = await client.get("/readyz", headers=asked)
    assert "Access-Control-Allow-Origin" not in answer.headers


async def test_a_token_is_for_a_call_with_its_agent_and_for_nothing_else(client, edge):
    from loguru import logger

    begun = []
    sink = logger.add(lambda m: begun.append(m.record["extra"]), level="DEBUG")
    edge.config = with_server(api_key="nobody's", admin_key="mine").model_copy(
        update={"agents": {"quiet": Agent(kind="silent")}}
    )
    try:
        mine = {"Authorization": "Bearer mine"}
        assert (await client.post("/tokens", json={})).status == 401
        unknown = await client.post("/tokens", json={"agent": "nobody"}, headers=mine)
        assert "no agent is called 'nobody'" in await refused(unknown, 400)
        made = await client.post("/tokens", json={"agent": "quiet"}, headers=mine)
        assert made.status == 201
        token = {"Authorization": f"Bearer {(await made.json())['token']}"}
        assert (await client.get("/v1/models", headers=token)).status == 403
        assert (await client.get("/calls", headers=token)).status == 401
        assert (await client.post("/tokens", json={}, headers=token)).status == 401
        leg = PeerLeg("caller")
        offer = {"sdp": await leg.offer(), "type": "offer"}
        answer = await client.post("/api/offer", json=offer, headers=token)
        assert answer.status == 200
        call_id = (await answer.json())["pc_id"]
        await leg.accept((await answer.json())["sdp"])
        async with asyncio.timeout(HANGS_S):
            while not any(line.get("event") == "call_started" for line in begun):
                await asyncio.sleep(0.01)
        await leg.hang_up("test over")
        started = next(line for line in begun if line.get("event") == "call_started")
        assert (started["call"], started["agent"]) == (call_id, "silent")
        edge.config = with_server(api_key="nobody's")
        assert (await client.post("/start", json={}, headers=token)).status == 401
    finally:
        logger.remove(sink)


@pytest.mark.parametrize("door", ["browser", "whip", "realtime"])
async def test_the_agent_knows_what_the_callers_token_says_of_the_caller(client, edge, door):
    desk = Agent(kind="silent", variables={"customer": "somebody", "plan": "basic"})
    edge.config = with_server(api_key="nobody's", admin_key="mine").model_copy(
        update={"agents": {"quiet": desk}}
    )
    asked = {"agent": "quiet", "variables": {"customer": "Ann", "other": "no"}}
    made = await client.post("/tokens", json=asked, headers={"Authorization": "Bearer mine"})
    token = {"Authorization": f"Bearer {(await made.json())['token']}"}
    leg = PeerLeg("caller")
    offer = await leg.offer()
    if door == "browser":
        body = {"sdp": offer, "type": "offer", "requestData": {"variables": {"customer": "Eve"}}}
        assert (await client.post("/api/offer", json=body, headers=token)).status == 200
    elif door == "whip":
        sdp = {**token, "Content-Type": "application/sdp"}
        assert (await client.post("/whip/room", data=offer, headers=sdp)).status == 201
    else:
        await client.ws_connect("/v1/realtime", headers=token)
    [info] = [one.info for one in edge.legs]
    assert edge.agents.fill(desk, info)("{{customer}}, {{plan}}") == "Ann, basic"


async def test_tokens_need_the_operators_key_to_be_made_with(client, edge):
    answer = await client.post("/tokens", json={})
    assert "[server] admin_key" in await refused(answer, 409)


async def test_when_full_callers_are_told_when_to_try_again(client, edge):
    async with offering() as one, offering() as two, offering() as three:
        await taken(client, one)
        await taken(client, two)
        for path in ("/start", "/api/offer"):
            response = await client.post(path, json=three)
            assert await refused(response, 503) == "all lines are busy"
            assert (await response.json())["reason"] == "full"
            assert response.headers["Retry-After"] == str(RETRY_AFTER_S)
        text = await (await client.get("/metrics")).text()
        assert 'offhook_calls_refused_total{reason="full"}' in text
        edge.legs[0].close("gone")
        async with asyncio.timeout(HANGS_S):
            while len(edge.legs) > 1:
                await asyncio.sleep(0.01)
        await taken(client, three)


async def test_when_draining_calls_in_progress_go_on_and_new_ones_do_not(client, edge):
    async with offering() as one, offering() as two:
        answer = await taken(client, one)
        edge.draining = True
        for path in ("/api/offer", "/start"):
            response = await client.post(path, json=two)
            assert "shutting down" in await refused(response, 503)
            assert (await response.json())["reason"] == "draining"
        await taken(client, {**one, "pc_id": answer["pc_id"]})


async def test_other_paths_and_methods_are_404_and_405(client):
    assert (await client.get("/nothing")).status == 404
    assert (await client.get("/api/offer")).status == 405
    assert (await client.delete("/start", json={})).status == 405


anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=10)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
body = st.dictionaries(
    st.sampled_from(["sdp", "type", "pc_id", "candidates", "restart_pc", "requestData", "body"]),
    st.one_of(anything, st.just("offer")),
)


@given(st.sampled_from([*POSTS, "PATCH"]), body)
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
async def test_no_json_is_a_500(client, path, fields):
    if path == "PATCH":
        response = await client.patch("/api/offer", json=fields)
    else:
        response = await client.post(path, json=fields)
    assert response.status in (200, 400, 404)


# --- the whole life ---


async def test_serve_says_where_it_is_and_ends_on_a_signal(capsys):
    """SIGTERM in earnest, to this very process."""
    from loguru import logger

    told = asyncio.get_running_loop().create_future()
    sink = logger.add(lambda m: "call me" in m and told.set_result(m.record["extra"]["port"]))
    config = CONFIG.model_copy(update={"tts": Tts(engine="espeak")})
    task = asyncio.create_task(server_io.serve(config))
    try:
        port = await asyncio.wait_for(told, HANGS_S)
        async with TestClient(_Running(port)) as client:
            assert (await client.get("/readyz")).status == 200
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(task, HANGS_S)
    finally:
        logger.remove(sink)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


class _Running(TestServer):
    """A server that runs already."""

    def __init__(self, port):
        super().__init__(web.Application())
        self._there = port

    def make_url(self, path):
        return super().make_url(path).with_port(self._there)


async def test_only_who_may_do_what_the_operator_may_is_told_what_fails(client, edge):
    """This machine's own callers, unless the operator has a key."""
    assert (await never_connected(client)).status == 200
    assert [leg.is_operators for leg in edge.legs][-1]
    edge.config = with_server(admin_key="operator")
    assert (await never_connected(client)).status == 200
    assert not [leg.is_operators for leg in edge.legs][-1]
    for leg in edge.legs:
        await leg.hang_up("test over")
    edge.config = CONFIG


# --- callers who do not connect ---


async def never_connected(client, headers=None):
    async with offering() as offer:
        return await client.post("/api/offer", json=offer, headers=headers)


async def test_callers_who_do_not_connect_hold_half_of_the_lines(client, edge):
    edge.config = with_server(max_calls=6)
    for _ in range(3):
        assert (await never_connected(client)).status == 200
    refusal = await never_connected(client)
    assert refusal.status == 503
    assert (await refusal.json())["reason"] == "connecting"
    assert refusal.headers["Retry-After"] == str(RETRY_AFTER_S)
    assert edge.metrics.refused.labels("connecting")._value.get() == 1


async def test_one_address_holds_fewer_of_them_than_all(edge):
    edge.config = with_server(max_calls=16)
    async with offering() as sent:
        offer = parse_offer(json.dumps(sent).encode())
        for _ in range(4):
            await edge.browsers.offer(offer, holders=by_address("192.0.2.1"))
        with pytest.raises(Busy):
            await edge.browsers.offer(offer, holders=by_address("192.0.2.1"))
        await edge.browsers.offer(offer, holders=by_address("192.0.2.2"))
        await edge.browsers.offer(offer, holders=by_address("127.0.0.1"))  # a proxy, perhaps


async def test_no_agent_begins_for_a_caller_who_is_not_there(client, edge, monkeypatch):
    begun = []
    monkeypatch.setattr(edge.call_class, "converse", lambda *given: begun.append(given))
    answer = await taken(client, await given_up())
    assert not begun
    (leg,) = edge.legs
    assert leg.ticks == 0
    assert (await client.delete(f"/api/offer/{answer['pc_id']}")).status == 200


async def given_up():
    async with offering() as offer:
        return offer


async def test_a_caller_who_does_not_connect_is_given_up_and_counted(client, edge, monkeypatch):
    monkeypatch.setattr(peer_io, "CONNECT_TIMEOUT_S", 0.3)
    failed = edge.metrics.calls_failed.labels("the caller did not connect in time")
    before = failed._value.get()
    await taken(client, await given_up())
    async with asyncio.timeout(HANGS_S):
        while edge.legs:
            await asyncio.sleep(0.01)
    assert failed._value.get() == before + 1


async def test_a_caller_who_hangs_up_while_connecting_frees_the_line_at_once(client, edge):
    answer = await taken(client, await given_up())
    other = await taken(client, await given_up())
    assert len(edge.legs) == 2
    path = f"/sessions/any/api/offer/{answer['pc_id']}"
    assert (await client.delete(path)).status == 200
    async with asyncio.timeout(HANGS_S):
        while edge.calls.keys() != {other["pc_id"]}:
            await asyncio.sleep(0.01)
    assert await refused(await client.delete(path), 404) == "unknown pc_id"


async def test_a_caller_who_leaves_before_the_answer_holds_no_line(client, edge, monkeypatch):
    answering = asyncio.Event()
    answer_slowly = PeerLeg.answer

    async def answer(leg, sdp):
        answering.set()
        await asyncio.sleep(0.3)
        return await answer_slowly(leg, sdp)

    monkeypatch.setattr(PeerLeg, "answer", answer)
    offer = await given_up()
    asking = asyncio.create_task(client.post("/api/offer", json=offer))
    await answering.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert edge.legs
    async with asyncio.timeout(HANGS_S):
        while edge.legs:
            await asyncio.sleep(0.01)
