"""Numbers that a caller writes down or types one digit at a time: codes, PINs, order numbers, ends
of cards, numbers to call.

A number by itself does not show that it is one; the words around it do. The rules are the same in
all languages, with the words of each.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from offhook.pipeline.speech.text.digit_groups import CALL_WORDS, split
from offhook.pipeline.speech.text.english.english_tables import NEVER_APART, UNITS
from offhook.pipeline.speech.text.languages.language_tables import UNIT_IDS
from offhook.pipeline.speech.text.reading import Reading
from offhook.pipeline.speech.text.word_lists import words

_LINKS = words(
    "is are was were ist sind war lautet lauten heißt est sont était es son era è sono é são "
    "eram zijn luidt luiden it's it’s that's that’s = — –"
)
"""Words between what a number is and the number."""
_LINKS_MANY = words("are were sind waren lauten sont son sono são zijn luiden")
_DUTCH_LINKS = words("is was zijn")
_STILL = words(
    "be sera será sarà wird wordt still noch toujours ancora ainda nog siendo now jetzt "
    "maintenant ahora adesso agora nu equals remains bleibt reste becomes être ser essere sein "
    "not nicht niet non pas não like wie as als comme como come also donc entonces quindi então "
    "dus so then try essayez pruebe provi tente probeer isn't isn’t"
)
"""Words that may stand for a link, or behind one."""
_AMOUNTS = words(
    "about around over under nearly almost than costs cost pay pays paid owe charge charges "
    "charged worth save saves for kostet kosten zahlt zahlen sparen über unter fast etwa rund "
    "circa coûte coûtent payer environ plus presque cuesta cuestan pagar casi unos costa costano "
    "pagare quasi custa custam kost betaalt ongeveer bijna für per por voor"
)
"""Words before an amount."""
_FROM = words("from von de da van du")
_FROM_TO = words("to auf zu à a para naar en")
_AS = words("as als comme como come")
_YOURS = words(
    "your my his her the ihr ihre ihrer mein meine deine votre mon ma le la su mi el suo sua mio "
    "il lo seu meu o uw mijn jouw het de"
)
_HOW_MANY = words("anzahl zahl gesamtzahl nombre cantidad quantità quantidade aantal")
_MANY = re.compile("(?:s|i|en|träge|persone|volte)$")
"""Matches nouns in the plural."""
_HOUSES = words("hausnummer huisnummer")
_NUMBER_WORDS = words("number numéro número numero")
_OF = words("of de di du del della do da des dos")
_LAST = words("last letzten derniers dernières últimos últimas últimas ultime laatste")
_FOUR = words("4 four vier quatre cuatro quattro quatro 3 three drei trois tres tre três drie")
_ARTICLES = words("the le la el il lo o a den die das dem der het de l")
_AND = words("and or und oder et ou y o e en of & to bis")
_PLEASE = words("in sur please sie bitte simply just now then veuillez por favor also code pin")
_ENTER = words(
    "enter type dial punch quote prima eingeben tippen drücken wählen saisir saisissez tapez "
    "taper entrez appuyez introduzca marque teclee ingrese inserisca digiti digita componga "
    "digite insira introduza tecle toets typ kies pulse presione oprima prema pressione carregue"
)
_ENTER_APART = {"geben": ("ein", "an"), "gib": ("ein", "an"), "voer": ("in",)}
"""Verbs of which a part is behind the number."""
_SEND = words("text send sms senden schicken envoyez envíe mande invii mandi envie stuur")
_REPLY = words(
    "reply respond answer antworten antworte répondez répondre responda responder risponda "
    "rispondi rispondere antwoord"
)
_REPLY_WITH = words("with mit par avec con com met")
_SEND_TO = words("to an au al a para naar")
_ENDS = ("end", "termin", "finis", "fini", "eindig", "acab", "заканч", "оканч")
_ENDS_IN = words("in with auf mit par en con per em por com op на")
_ENDINGS = words("ending endung endziffern final terminación terminaison")
_IDENTIFIED = words(
    "card account number phone order karte konto nummer carte compte numéro tarjeta cuenta "
    "número carta conto numero cartão conta kaart rekening"
)
"""Things of which one says the last digits."""
_CALL = CALL_WORDS & words(
    "call dial ring text rufen wählen wählt ruf appelez appeler composez appelle llame llamar "
    "llámenos marque chiami chiama chiamare componga ligue ligar liguem bel bellen belt звоните "
    "позвоните звонить наберите набрать"
)
_AT = words("at unter au al op")
_CALL_BEHIND = words("anrufen wählen rufen alarmieren verständigen bellen")
_URGENT = re.compile(
    r".*(?:emerg|notfall|notruf|urgen|nood|poli[cz]|polít|feuerwehr|pompier|bombe|ambul)\w*"
    r"|(?:hot|help|life)?line$"
)
EMERGENCIES = words("000 061 091 110 111 112 113 115 118 119 190 192 193 911 999")
"""Numbers that are called in an emergency, of all countries."""
_ANSWERED_BY_ALL = re.compile(r"116\d{3}|116 (?:000|006|111|116|117|123)")
"""Numbers of the same service in all of Europe."""
_YEAR = re.compile(r"1[1-9]\d\d|20\d\d")

_CODE = re.compile(
    r"(?P<mark>#?)(?P<parts>[A-Za-z0-9]+(?:[-/.][A-Za-z0-9]+)*)(?P<keys>#?)", re.ASCII
)
_MASKED = re.compile(r"[xX•●.…-]{2,}(\d{3,})")
_MORE = re.compile(r"(?!I$)[A-Z]$|(?=.*\d)[A-Z0-9]{1,12}(?:[-/][A-Z0-9]{1,12})*|[A-Z]{2,4}")
_ACCOUNT = re.compile(r"[A-Z]{2}\d{2}([A-Z0-9]{11,30})?")
_DISTRICT = re.compile(r"[A-Z]{1,2}\d[A-Z\d]?")
"""Matches the first half of a British postcode."""
_GERMAN_PLATE = re.compile("[A-ZÄÖÜ]{1,3}-[A-Z]{1,2}")
_SLASH_DATE = re.compile(r"\d\d?([./])\d\d?\1\d{2,4}|\d{4}([./])\d\d?\2\d\d?")
_LENGTH = re.compile(r"\d{1,2}-?(?:digit|letter|character|stellig|ziffrig|cijferig)")
"""Matches how long a code is: "the 4-digit code"."""
_BOTH = re.compile(r"(?=.*\d)(?=.*[A-Z])[A-Z0-9]{2,}")
_ALWAYS = re.compile(
    r"[A-Z]{1,5}(?:[-/]\d+)*[-/]\d{4,}(?:[-/]\d+)*"  # INV-2024-0042
    r"|[A-Z]{1,3}-\d{1,4}-[A-Z]{1,3}"  # AB-123-CD
    r"|\d{2,3}(?:\.\d{3}){2}(?:[-/]\d{1,4}){1,2}"  # 123.456.789-09
    r"|\d(?:-\d){3,}|0x[0-9A-Fa-f]{2,}"
)
LONGEST_WHOLE = 7
"""Characters of a code that is spoken without a pause."""
_UNITS = (UNITS.keys() | UNIT_IDS.keys()) - NEVER_APART - {"ha"}
_MOST_GROUPS = 12
_TELEPHONE_DIGITS = 8
SECRET, NUMBERED = 3, 4
"""Fewest digits of a number behind a word that has only codes, and behind one that may be
counted."""


@dataclass(frozen=True)
class CodeWords:
    """A language's words before a code."""

    secret: frozenset[str]
    """What is always said digit by digit: code, PIN."""
    numbered: frozenset[str]
    """What has a number but may be counted too: order, ticket."""
    counted: re.Pattern[str]
    """Matches words that say that a number before them counts."""
    compound: bool = False
    """Whether these words end longer ones."""

    def is_secret(self, word: str) -> bool:
        return self._has(word, self.secret)

    def is_numbered(self, word: str) -> bool:
        return self._has(word, self.numbered)

    def _has(self, word: str, of: frozenset[str]) -> bool:
        if word in _HOUSES:
            return False
        one = word.removesuffix("s")
        if word in of or one in of or word.endswith("code"):
            return True
        return self.compound and word.endswith(tuple(of))


CODE_WORDS = {
    "en": CodeWords(
        words(
            "code passcode pin otp password passphrase cvv cvc zip zipcode postcode isbn imei "
            "vin ssn ein tin iban swift bic pnr sku tan serial digit hotline helpline routing "
            "combination buzzer"
        ),
        words(
            "number id no nos nr account acct ticket confirmation invoice reference ref id "
            "passport order case booking reservation card tracking verification member "
            "membership policy claim license licence plate registration patient customer "
            "employee"
        ),
        re.compile(
            r"(?!(?:has|his|this|was|does|needs|ships|includes|contains|arrives|comes|goes|is|as|"
            r"us|plus|always|perhaps|works|expires|starts|begins|means|belongs|looks|gets|says)$)"
            r"[a-z]{2,}s|people|men|women|children|more|million|thousand|hundred"
        ),
    ),
    "de": CodeWords(
        words(
            "code pin tan passwort kennwort plz postleitzahl geheimzahl prüfziffer ziffer "
            "ziffern durchwahl bankleitzahl blz cvv cvc iban bic nummer nr otp aktenzeichen "
            "kennzeichen kennung hotline"
        ),
        words(
            "id konto bestellung buchung reservierung auftrag rechnung ticket karte sendung "
            "referenz vorgang fall police vertrag aufträge aufträgen bestellungen rechnungen"
        ),
        re.compile(r"(?!(?:Sie|Ihnen|Ihre?|Uhr|Und)$)[A-ZÄÖÜ][a-zäöüß]+|mal|mehr|weitere"),
        compound=True,
    ),
    "fr": CodeWords(
        words(
            "code pin mot-de-passe passe cvv cvc cryptogramme digicode iban bic otp siret siren "
            "chiffre plaque immatriculation identifiant rib poste"
        ),
        words(
            "numéro n° nº compte carte référence réf commande dossier réservation billet facture "
            "client postal suivi ticket contrat colis"
        ),
        re.compile(
            r"(?!(?:vous|nous|sans|dans|puis|pas|plus|après|dès|depuis|alors|vers|chez|toujours|"
            r"mais|est)$)[a-zà-ÿ]{3,}[sx]|mille|million|euros?"
        ),
    ),
    "es": CodeWords(
        words(
            "código pin clave contraseña uso cvv cvc iban bic otp dígito cifra matrícula dni nie "
            "extensión interno folio curp rfc nip nif localizador token identificador"
        ),
        words(
            "id número núm n.º nº cuenta tarjeta referencia ref pedido reserva postal expediente "
            "factura billete cliente seguimiento ticket póliza contrato orden caso"
        ),
        re.compile(
            r"(?!(?:después|antes|entonces|mientras|además|tras|más|pues|nos|les|las|los)$)"
            r"[a-zà-ÿ]{3,}s|mil|euros?"
        ),
    ),
    "it": CodeWords(
        words(
            "codice codici pin password cvv cvc iban bic otp cap cifre cifra targa fiscale iva "
            "interno parola monouso"
        ),
        words(
            "id numero n° nº n conto carta riferimento rif ordine prenotazione postale pratica "
            "fattura biglietto cliente spedizione tessera polizza ordini"
        ),
        re.compile(
            r"(?!(?:oggi|ieri|domani|quindi|poi|lei|noi|voi)$)[a-z]{3,}i|euro|mila|persone|volte|"
            r"ore|pizze|copie|parole|pagine|righe|case|camere|stanze|tazze|settimane"
        ),
    ),
    "pt": CodeWords(
        words(
            "código pin senha palavra-passe cvv cvc iban bic otp dígito cep cpf cnpj nif "
            "matrícula ramal extensão placa token localizador"
        ),
        words(
            "id número n.º nº conta cartão referência ref pedido reserva postal encomenda "
            "processo fatura bilhete cliente rastreio rastreamento protocolo apólice contrato"
        ),
        re.compile(
            r"(?!(?:depois|antes|mas|nos|após|através|mais|pois|aos|às)$)[a-zà-ÿ]{3,}s|mil|euros?"
        ),
    ),
    "ru": CodeWords(
        words(
            "код кода коду кодом коды пин пин-код пароль пароля паролем индекс инн снилс бик cvv "
            "cvc iban"
        ),
        words(
            "номер номера номером счёт счет счёта счета заказ заказа заказу карта карты картой "
            "карте бронь брони билет билета договор договора заявка заявки"
        ),
        re.compile(
            r"(?:руб|доллар|евро|челов|штук|раз|минут|час|дн|дней|лет|год|метр|тысяч|миллион|"
            r"процент|бал|слов|букв|знак|символ|цифр)\w*|мест|мин|кг|км|м|г"
        ),
    ),
    "nl": CodeWords(
        words(
            "code pin wachtwoord postcode iban bic cvv cvc otp cijfers nummer nr bsn kenteken "
            "hotline klantnr"
        ),
        words(
            "id rekening kaart referentie bestelling boeking reservering dossier factuur ticket "
            "order zending polis zaak bestellingen facturen"
        ),
        re.compile(
            r"mensen|personen|stuks?|keer|maal|dagen|uren|minuten|jaren?|weken|maanden|kamers|"
            r"cijfers|letters|tekens|punten|klanten|boeken|meer|miljoen|duizend|euro|uur|"
            r"[a-z]+(?:'s|jes|lingen)"
        ),
        compound=True,
    ),
}


@dataclass(frozen=True)
class Code:
    groups: list[str]
    marked: bool = False
    """Whether it begins with #."""
    keyed: bool = False
    """Whether the key # is to be pressed behind it."""

    def spoken(self, digits: Callable[[str], str]) -> str:
        """Returns its groups in words; `digits` spells those of digits."""
        if all(len(group) == 1 and group.isdecimal() for group in self.groups):
            return _group("".join(self.groups), digits)
        return ", ".join(_group(group, digits) for group in self.groups)


def _group(text: str, digits: Callable[[str], str]) -> str:
    if text.isdecimal():
        return ", ".join(map(digits, split(text)))
    if text.isalpha() and len(text) > 3 and re.search("[aeiouyAEIOUY]", text):
        return text  # CASE-1042, but not INV-2024
    runs = re.findall(r"\d+|[^\W\d_]+", text)
    if len(runs) == 1:
        return _each(text, digits)
    short = len(runs) == 2 and len(runs[0]) > 3 and len(runs[1]) < 3
    if short and re.search("[AEIOU]", runs[0][1:]):
        return f"{runs[0].capitalize()} {_group(runs[1], digits)}"  # WELCOME10
    if not runs[0].isupper() and runs[0].isalpha() and len(runs[0]) > 2:
        return " ".join(_group(run, digits) for run in runs)
    whole = len(text) <= (4 if len(runs) == 2 else LONGEST_WHOLE)
    if not whole and (len(runs) == 2 or min(map(len, runs)) > 1):
        return ", ".join(_each(run, digits) for run in runs)
    size = 4 if len(text) > LONGEST_WHOLE else len(text)
    return ", ".join(_each(text[at : at + size], digits) for at in range(0, len(text), size))


def _each(text: str, digits: Callable[[str], str]) -> str:
    if text.isdecimal():
        return ", ".join(map(digits, split(text)))
    return " ".join(digits(char) if char.isdecimal() else char for char in text)


def find_code(reading: Reading, language: str) -> Code | None:
    """Returns a code, having consumed the words that belong to it."""
    if masked := _MASKED.fullmatch(reading.core):
        return Code([masked[1]])
    if re.fullmatch(r"-\d{3,4}", reading.core) and _is_ending(reading, reading.sentence()):
        return Code([reading.core[1:]])
    match, known = _CODE.fullmatch(reading.core), CODE_WORDS[language]
    if _LENGTH.match(reading.core):
        return None
    if not match or not any(map(str.isdecimal, reading.core)):
        return _plate(reading) or _lettered(reading, known)
    text = match["parts"]
    area = reading.lead.endswith("(") and reading.following()[:1].isdecimal()
    if _SLASH_DATE.fullmatch(text) or area or _is_account(reading):
        return None
    parts, marked = re.split("[-/.]", text), bool(match["mark"])
    if match["keys"] and text.isdecimal() and len(text) >= SECRET:
        return Code(parts, marked, keyed=True)
    fewest = 0 if "." in text or _is_telephone(reading) else _fewest_digits(reading, known)
    if fewest:
        further = _further(reading, known)
        groups = [*parts, *(part for word in further for part in re.split("[-/]", word))]
        whole = "".join(groups)
        letters = not whole.isdecimal() and (fewest == SECRET or len(text) > 4)
        if sum(map(str.isdecimal, whole)) >= fewest or text[0] == "0" or letters:
            if further:
                reading.consume(len(further))
            return Code(groups, marked)
    if _DISTRICT.fullmatch(text) and re.fullmatch(r"\d[A-Z]{2}", place := reading.after().core):
        reading.consume()
        return Code([text, place])
    mixed = "." not in text and any(map(_BOTH.fullmatch, parts))
    if _ALWAYS.fullmatch(text) or (mixed and (len(parts) > 1 or marked)):
        return Code(parts, marked)
    return Code(parts, marked) if marked and text.isdecimal() and len(text) > 3 else None


def _plate(reading: Reading) -> Code | None:
    """M-AB 1234, of a German car."""
    if not _GERMAN_PLATE.fullmatch(reading.core) or reading.trail:
        return None
    digits = reading.after().core
    if not re.fullmatch(r"\d{1,4}[EH]?", digits):
        return None
    reading.consume()
    return Code([*reading.core.split("-"), digits])


def _lettered(reading: Reading, known: CodeWords) -> Code | None:
    """AB 4821 X, behind a word for codes."""
    if not re.fullmatch("[A-Z]{1,3}", reading.core) or reading.trail:
        return None
    if not re.fullmatch(r"\d{3,}", reading.after().core):
        return None
    if _fewest_digits(reading, known) != SECRET:
        return None
    groups = [reading.core, *_further(reading, known)]
    reading.consume(len(groups) - 1)
    return Code(groups)


def mixed_code(text: str) -> Code | None:
    """Returns a code that its shape alone shows: K7QX2P, PK48213, 12-34-08."""
    runs = re.findall(r"\d+|[A-Z]+", text)
    if re.fullmatch(r"\d{1,4}(?:-\d{1,4}){2,}", text):
        return Code(text.split("-"))
    many = len(runs) > 2 or (len(runs) == 2 and re.search(r"\d{5}", text))
    return Code([text]) if many and len(text) > 4 and "".join(runs) == text else None


def _is_account(reading: Reading) -> bool:
    """Returns whether it is an IBAN, which has a rule of its own."""
    match = _ACCOUNT.fullmatch(reading.core)
    return match is not None and (match[1] is not None or len(reading.after().core) == 4)


def _is_telephone(reading: Reading) -> bool:
    """Returns whether it is a long number in groups, which telephones have, with a rule of its
    own."""
    digits, number = len(reading.core), 0
    while reading.core[0] == "0" and (group := reading.after(number).core).isdecimal():
        digits += len(group)
        number += 1
    return number > 0 and digits >= _TELEPHONE_DIGITS


def _further(reading: Reading, known: CodeWords) -> list[str]:
    """Returns the words behind that are groups of the same code."""
    found: list[str] = []
    while len(found) < _MOST_GROUPS and _MORE.fullmatch(word := reading.after(len(found)).core):
        found.append(word)
    while found and is_counted(reading, known, len(found)):
        found.pop()
    return found


def _fewest_digits(reading: Reading, known: CodeWords) -> int:
    """Returns the fewest digits that a number has to have in order to be a code here; 0 if it is
    none."""
    before = _without_listed(reading)
    if not before:
        return SECRET * _is_named_behind(reading, known)
    if known.is_secret(before[-1]):
        return SECRET
    if is_counted(reading, known):
        return 0
    if known.is_numbered(before[-1]) and (before[-1] != "no" or reading.before[-1][-1] == "."):
        return NUMBERED
    if fewest := _fewest_behind_link(before, known):
        return fewest
    if any(map(known.is_secret, before)) and _is_value(reading, known, before):
        return SECRET
    if _is_ending(reading, before) or _is_entered(reading, before):
        return SECRET
    last = reading.before[-2 if before[-1] in _ARTICLES else -1]
    apart = last.endswith(":") or (last.endswith(",") and reading.trail)
    if apart and any(map(known.is_secret, before)):
        return SECRET
    if apart and reading.trail and any(map(known.is_numbered, before)):
        return NUMBERED
    if before[-1] in _REPLY_WITH and not _REPLY.isdisjoint(before[-2:-1]):
        return SECRET
    if before[-1] in _SEND_TO and not _SEND.isdisjoint(before[-5:]):
        return NUMBERED
    return SECRET * _is_named_behind(reading, known)


def _words_of_clause(reading: Reading) -> int:
    """Returns how many words stand before it since the last comma; 1 if none does."""
    number = 0
    for word in reversed(reading.before):
        if not word or word[-1] in ",;":
            break
        number += 1
    return number or 1


def _is_value(reading: Reading, known: CodeWords, before: list[str]) -> bool:
    """Returns whether it is the value of a code: your code will be 2580, change your PIN from 1234
    to 9876."""
    if before[-1] in _STILL:
        return True
    if len(before) > 2 and before[-1] in _FROM_TO and before[-3] in _FROM:
        return before[-2].isdecimal()
    if len(reading.core) > 3 and before[-1] not in _AMOUNTS and not _YEAR.fullmatch(reading.core):
        return any(map(known.is_secret, before[-_words_of_clause(reading) :]))
    if before[-1] not in _FROM:
        return False
    listed = len(before) < len(reading.sentence())
    return listed or (reading.after().core in _FROM_TO and reading.after(1).core.isdecimal())


def _fewest_behind_link(before: list[str], known: CodeWords) -> int:
    """The code I sent you is 4821, your order is 10482; but the number of orders is 4821."""
    article = len(before) > 1 and before[-1] in _ARTICLES
    if article and before[-1] == "de" and before[-2] not in _DUTCH_LINKS:
        return 0  # la facture est de 2023
    *subject, link = before[:-1] if article else before
    if link not in _LINKS or not subject:
        return 0
    if not _HOW_MANY.isdisjoint(subject):
        return 0
    last_four = not (_LAST.isdisjoint(subject) or _FOUR.isdisjoint(subject))
    if last_four or any(map(known.is_secret, subject)):
        return SECRET
    one = link in _LINKS_MANY or not _MANY.search(subject[-1])
    named = one and known.is_numbered(subject[-1])
    return NUMBERED * (named or any(_is_of_one(subject[at:]) for at in range(1, len(subject))))


def _is_of_one(words: list[str]) -> bool:
    """Returns whether the words begin with the number of one thing: number with us, numéro de
    client."""
    if words[0] not in _NUMBER_WORDS or words[1:2] in ([], ["of"]):
        return False
    of = [word for word in words[1:] if word not in _YOURS | _OF]
    return words[1] not in _OF or (bool(of) and not _MANY.search(of[0]))


def _without_listed(reading: Reading) -> list[str]:
    """Returns the words before it in its sentence, without numbers of the same list: orders 10482
    and 10483."""
    before, size = reading.sentence(), len(reading.core)

    def is_listed(word: str) -> bool:
        return word.isdecimal() and len(word) > 2 and abs(len(word) - size) < 2

    while before:
        link = -2 if before[-1] in _ARTICLES and len(before) > 2 else -1
        if is_listed(before[-1]):
            before.pop()
        elif len(before) > 1 and before[link] in _AND and is_listed(before[link - 1]):
            del before[link - 1 :]
        else:
            break
    return before


def is_counted(reading: Reading, known: CodeWords, number: int = 0) -> bool:
    """Returns whether a word behind is what is counted; usually the next one."""
    found = reading.after(number).core
    if found[:1] and found[0] in "$€£¥%°":
        return True
    return found in _UNITS or known.counted.fullmatch(found) is not None


def _is_ending(reading: Reading, before: list[str]) -> bool:
    """A card ending in 4821."""
    if before and before[-1] in _ENDINGS:
        return True
    *verb, last = before or [""]
    if last not in _ENDS_IN or not verb or not verb[-1].startswith(_ENDS):
        return False
    return not _IDENTIFIED.isdisjoint(before) or not _YEAR.fullmatch(reading.core)


def _is_entered(reading: Reading, before: list[str]) -> bool:
    """Enter 2024, geben Sie 2024 ein."""
    verb = before
    while verb and verb[-1] in _PLEASE | _ARTICLES:
        verb = verb[:-1]
    if not verb:
        return False
    if verb[-1] in _ENTER_APART:
        return reading.after().core in _ENTER_APART[verb[-1]]
    told = len(verb) == 1 or verb[-2] in _PLEASE | _AND
    return verb[-1] in _ENTER and (told or not _YEAR.fullmatch(reading.core))


def _is_named_behind(reading: Reading, known: CodeWords) -> bool:
    """4821 is your code, use 4821 as your PIN."""
    if reading.trail or reading.following().lower() not in _LINKS | _AS:
        return False
    yours = False
    for number in range(1, 6):
        written = reading.following(number)
        word = written.lower().strip(".,;:!?\"'")
        if known.is_secret(word) or (yours and known.is_numbered(word)):
            return True
        if not word or written[-1] in ".,;:!?":
            return False
        yours = yours or word in _YOURS
    return False


def number_to_call(reading: Reading, language: str) -> str | None:
    """Returns the digits of an emergency's number, or of another short one that is to be called."""
    known, text = CODE_WORDS[language], reading.core
    both = f"{text} {reading.after().core}" if text == "116" else ""
    if _ANSWERED_BY_ALL.fullmatch(both) and not is_counted(reading, known, 1):
        reading.consume()
        return both.replace(" ", "")
    alone = re.fullmatch(r"#?\d{3,6}[.,;:!?]*", reading.word)
    grouped = alone and not reading.trail and reading.next_char().isdecimal()
    if not alone or grouped or is_counted(reading, known):
        return None
    if _ANSWERED_BY_ALL.fullmatch(text):
        return text
    before = _without_listed(reading)
    article = bool(before) and before[-1] in _ARTICLES
    if text in EMERGENCIES:
        if any(word in CALL_WORDS or _URGENT.match(word) for word in before):
            return text
        link = reading.after().core.lower()
        if link in _CALL_BEHIND or (reading.trail and reading.before[-1].endswith((",", ":"))):
            return text
        placed = link in _LINKS and (article or not before)
        return text if placed or (article and (link in _AND or not link)) else None
    while before and before[-1] in _PLEASE | _ARTICLES:
        before.pop()
    if not before or (_YEAR.fullmatch(text) and reading.after().core):
        return None
    linked = (before[-1] in _LINKS or before[-1] in _AT) and any(map(_URGENT.match, before))
    return text if before[-1] in _CALL or linked else None
