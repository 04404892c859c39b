"""Where phones are, in the store: of each server by itself."""

from offhook.telephony.sip.extensions.saved_phones import SavedPhones
from offhook.web.records.store import CallStore


def test_each_server_has_its_phones_until_they_expire(url: str) -> None:
    store = CallStore(url)
    store.prepare()
    kept = store.registrations
    kept.save("a:1", {"101": SavedPhones("one", 200), "102": SavedPhones("two", 300)})
    kept.save("b:1", {"101": SavedPhones("other", 400)})
    assert kept.of("a:1", 100) == {"101": "one", "102": "two"}
    kept.save("a:1", {"101": SavedPhones("moved", 250), "102": None, "103": None})
    assert kept.of("a:1", 100) == {"101": "moved"}
    assert kept.of("a:1", 250) == {}
    assert kept.of("b:1", 100) == {"101": "other"}
    assert kept.of("a:1", 400) == {}
    assert kept.of("b:1", 100) == {}  # whichever server asks, what has expired is gone
    store.close()
