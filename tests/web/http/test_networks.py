"""Who may use what has no keys: this machine, and the networks that were named."""

import pytest

from offhook.web.http.networks import may_connect, private_network

HOME = [private_network(text) for text in ("192.168.1.0/24", "fd12::/16", "10.0.0.7")]


@pytest.mark.parametrize(
    ("peer", "may"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.168.1.77", True),
        ("::ffff:192.168.1.77", True),
        ("192.168.2.77", False),
        ("10.0.0.7", True),
        ("10.0.0.8", False),
        ("fd12::5", True),
        ("fe80::1%eth0", False),
        ("203.0.113.9", False),
        ("2001:db8::1", False),
    ],
)
def test_named_networks_and_this_machine_may_connect(peer: str, may: bool) -> None:
    assert may_connect(peer, HOME) == may
