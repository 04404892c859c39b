"""A SIP client in a browser: SIP's signalling, WebRTC's media."""

from offhook.signaling.peer_io import PeerLeg
from tests.support.waiting import until
from tests.telephony.sip.phones import endpoint
from tests.telephony.sip.scripted_peer import udp_peer


async def test_the_record_of_a_browsers_call_has_its_codec_and_encryption():
    browser = PeerLeg("browser")
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        try:
            await browser.accept(await far.call(await browser.offer()))
            talk = await host.talk()
            await until(lambda: talk.leg.connected and talk.leg.statistics().packets_sent)
            await far.hang_up()
        finally:
            await browser.hang_up("done")
        await until(lambda: host.records)
    (record,) = host.records
    assert record.codec == "opus"
    assert record.srtp in ("DTLS AEAD_AES_256_GCM", "DTLS AES_CM_128_HMAC_SHA1_80")
    assert record.srtp == browser.srtp
