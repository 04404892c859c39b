"""A ticket lets one stream in, once."""

from urllib.parse import quote

import pytest

from offhook.telephony.carriers.auth.signatures import Rejected
from offhook.telephony.carriers.auth.tickets import MAX_TICKETS, TICKET_LIFETIME_S, Tickets


def test_a_ticket_works_once():
    tickets = Tickets()
    ticket = tickets.issue(0.0, "CA1")
    assert quote(ticket, safe="") == ticket
    assert tickets.redeem(ticket, TICKET_LIFETIME_S - 0.01) == "CA1"
    with pytest.raises(Rejected):
        tickets.redeem(ticket, TICKET_LIFETIME_S - 0.01)


def test_a_ticket_grows_old():
    tickets = Tickets()
    ticket = tickets.issue(0.0, "CA1")
    with pytest.raises(Rejected):
        tickets.redeem(ticket, TICKET_LIFETIME_S)
    assert len(tickets) == 0


def test_one_that_waits_for_a_telephone_to_be_answered_is_good_for_longer():
    tickets = Tickets()
    ringing, brief = tickets.issue(0.0, "CA1", 180), tickets.issue(0.0, "CA2")
    with pytest.raises(Rejected):
        tickets.redeem(brief, TICKET_LIFETIME_S)
    assert tickets.redeem(ringing, 179) == "CA1"


@pytest.mark.parametrize("ticket", ["", "x", "\udcff", "a" * 100_000])
def test_a_made_up_ticket_is_refused(ticket):
    tickets = Tickets()
    tickets.issue(0.0, "CA1")
    with pytest.raises(Rejected):
        tickets.redeem(ticket, 0.0)


def test_there_are_only_so_many():
    tickets = Tickets()
    issued = [tickets.issue(0.0, n) for n in range(MAX_TICKETS)]
    with pytest.raises(Rejected, match="waiting"):
        tickets.issue(1.0, "more")
    assert tickets.redeem(issued[0], 1.0) == 0
    tickets.issue(1.0, "more")
    tickets.issue(TICKET_LIFETIME_S, "later")
    assert len(tickets) == 2
