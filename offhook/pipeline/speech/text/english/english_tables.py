"""Words that English reads in a special way."""

from dataclasses import dataclass

from offhook.pipeline.speech.text.english.english_numbers import MONTHS
from offhook.pipeline.speech.text.word_lists import table, words


@dataclass(frozen=True)
class Currency:
    one: str
    many: str
    cent: str = ""
    cents: str = ""
    """Empty for currencies without hundredths."""


_DOLLAR = Currency("dollar", "dollars", "cent", "cents")
_EURO = Currency("euro", "euros", "cent", "cents")
_POUND = Currency("pound", "pounds", "penny", "pence")
_YEN = Currency("yen", "yen")
_YUAN = Currency("yuan", "yuan")
_RUPEE = Currency("rupee", "rupees", "paisa", "paise")
_WON = Currency("won", "won")
_RUBLE = Currency("ruble", "rubles", "kopeck", "kopecks")
_LIRA = Currency("lira", "lira", "kurush", "kurush")
_BAHT = Currency("baht", "baht", "satang", "satang")
_REAL = Currency("real", "reais", "centavo", "centavos")
_ZLOTY = Currency("zloty", "zlotys", "grosz", "groszy")
_KORUNA = Currency("Czech koruna", "Czech korunas", "haler", "halers")


def _dollars(of: str) -> Currency:
    return Currency(f"{of} dollar", f"{of} dollars", "cent", "cents")


CURRENCIES = {
    "$": _DOLLAR,
    "€": _EURO,
    "£": _POUND,
    "¥": _YEN,
    "￥": _YEN,
    "₹": _RUPEE,
    "₩": _WON,
    "US$": _dollars("US"),
    "C$": _dollars("Canadian"),
    "CA$": _dollars("Canadian"),
    "A$": _dollars("Australian"),
    "AU$": _dollars("Australian"),
    "₽": _RUBLE,
    "NZ$": _dollars("New Zealand"),
    "HK$": _dollars("Hong Kong"),
    "₿": Currency("bitcoin", "bitcoin"),
    "₺": _LIRA,
    "₴": Currency("hryvnia", "hryvnias", "kopiyka", "kopiykas"),
    "₪": Currency("shekel", "shekels", "agora", "agorot"),
    "₫": Currency("dong", "dong"),
    "₱": Currency("peso", "pesos", "centavo", "centavos"),
    "₦": Currency("naira", "naira", "kobo", "kobo"),
    "฿": _BAHT,
    "R$": _REAL,
    "zł": _ZLOTY,
    "Kč": _KORUNA,
    "S$": _dollars("Singapore"),
    "MX$": Currency("Mexican peso", "Mexican pesos", "centavo", "centavos"),
}
CURRENCY_CODES = {
    "USD": _dollars("US"),
    "EUR": _EURO,
    "GBP": _POUND,
    "JPY": _YEN,
    "CNY": _YUAN,
    "RMB": _YUAN,
    "INR": _RUPEE,
    "KRW": _WON,
    "RUB": _RUBLE,
    "CAD": _dollars("Canadian"),
    "AUD": _dollars("Australian"),
    "BTC": Currency("bitcoin", "bitcoin"),
    "CHF": Currency("Swiss franc", "Swiss francs", "centime", "centimes"),
    "TRY": _LIRA,
    "THB": _BAHT,
    "BRL": _REAL,
    "PLN": _ZLOTY,
    "CZK": _KORUNA,
    "SEK": Currency("Swedish krona", "Swedish kronor"),
    "NOK": Currency("Norwegian krone", "Norwegian kroner"),
    "DKK": Currency("Danish krone", "Danish kroner"),
    "NZD": _dollars("New Zealand"),
    "HKD": _dollars("Hong Kong"),
    "SGD": _dollars("Singapore"),
    "MXN": Currency("Mexican peso", "Mexican pesos", "centavo", "centavos"),
    "ZAR": Currency("rand", "rand", "cent", "cents"),
}
SCALES = {
    name: name for name in ("hundred", "thousand", "million", "billion", "trillion", "quadrillion")
} | {"mn": "million", "bn": "billion"}
SHORT_SCALES = table(
    "k = thousand | K = thousand | bn = billion | B = billion | b = billion | mm = million | "
    "mn = million | M = million | m = million | T = trillion | tn = trillion"
)


def _units(text: str) -> dict[str, tuple[str, str]]:
    """Returns singular and plural of each unit by its symbols; by default the plural adds an s."""
    units: dict[str, tuple[str, str]] = {}
    for symbols, names in table(text).items():
        one, _, many = names.partition("/")
        units |= dict.fromkeys(symbols.split(), (one, many or one + "s"))
    return units


UNITS = _units(
    "kg = kilogram | g = gram | mg = milligram | µg μg mcg = microgram | ng = nanogram | "
    "lb lbs = pound | oz = ounce | "
    "km = kilometer | m = meter | cm = centimeter | mm = millimeter | µm μm = micrometer | "
    "nm = nanometer | ft = foot/feet | in = inch/inches | yd = yard | mi = mile | "
    "mph = mile per hour/miles per hour | "
    "km/h kmh kph = kilometer per hour/kilometers per hour | "
    "m/s = meter per second/meters per second | L l = liter | mL ml = milliliter | "
    "dl dL = deciliter | cl cL = centiliter | µL μL µl μl = microliter | "
    "dm = decimeter | m/s² = meter per second "
    "squared/meters per second squared | "
    "gal = gallon | tbsp = tablespoon | tsp = teaspoon | m² m2 sqm = square meter | "
    "m³ = cubic meter | km² = square kilometer | cm² = square centimeter | "
    "cm³ = cubic centimeter | sqft = square foot/square feet | ha = hectare | W = watt | "
    "kW = kilowatt | MW = megawatt | GW = gigawatt | mW = milliwatt | Wh = watt hour | "
    "kWh = kilowatt hour | MWh = megawatt hour | V = volt | mV = millivolt | kV = kilovolt | "
    "mA = milliamp | µA μA = microamp | µV μV = microvolt | µF μF = microfarad | "
    "nF = nanofarad | pF = picofarad | kΩ = kilohm | MΩ = megohm | kPa = kilopascal | "
    "MPa = megapascal | mmol = millimole | µmol μmol = micromole | mmHg = millimeter of "
    "mercury/millimeters of mercury | ppm = part per million/parts per million | "
    "ppb = part per billion/parts per billion | kN = kilonewton | "
    "A = amp | mAh = milliamp hour | Ω = ohm | Hz = hertz/hertz | "
    "kHz = kilohertz/kilohertz | MHz = megahertz/megahertz | GHz = gigahertz/gigahertz | "
    "KB kB = kilobyte | MB = megabyte | GB = gigabyte | TB = terabyte | "
    "kbps kbit/s = kilobit per second/kilobits per second | "
    "Mbps Mbit/s = megabit per second/megabits per second | "
    "Gbps Gbit/s = gigabit per second/gigabits per second | dB = decibel | "
    "dBm = D B M/D B M | px = pixel | fps = frame per second/frames per second | "
    "rpm = revolution per minute/revolutions per minute | "
    "bpm = beat per minute/beats per minute | psi = P S I/P S I | kcal = kilocalorie | "
    "cal = calorie | kJ = kilojoule | hPa = hectopascal | h hr hrs = hour | "
    "min mins = minute | s sec secs = second | ms = millisecond | µs μs = microsecond | "
    "ns = nanosecond | yr yrs = year | mo mos = month | wk wks = week | pt pts = point | "
    "pp = percentage point | °C ℃ = degree Celsius/degrees Celsius | "
    "°F ℉ = degree Fahrenheit/degrees Fahrenheit"
)
PER_WORDS = words("day week month year hour minute second person night unit serving dose")
"""Words after the slash of "per"."""
NEVER_APART = frozenset(("in", "A", "pp", "pt", "mo", "cal"))
"""Unit symbols that, as separate words, usually mean something else."""

MONTH_NAMES = {
    **{month.lower(): month for month in MONTHS},
    **{month[:3].lower(): month for month in MONTHS},
    "sept": "September",
}
DAY_NAMES = table(
    "mon = Monday | tue = Tuesday | tues = Tuesday | wed = Wednesday | thu = Thursday | "
    "thur = Thursday | thurs = Thursday | fri = Friday | sat = Saturday | sun = Sunday"
)
STREETS = words(
    "street st avenue ave road rd boulevard blvd lane ln drive dr court ct way place pl square sq "
    "terrace parkway pkwy highway hwy crescent close circle trail row mews"
)
STREET_WORDS = 4
"""Words behind a house's number among which one of STREETS is looked for."""
YEAR_WORDS = words(
    "in since by from until till of circa around before after during late early mid year class "
    "summer spring winter autumn fall on to and through"
)
PORTIONED = words(
    "of cup cups teaspoon teaspoons tablespoon tablespoons inch hour mile pound price off"
)
"""Words behind a fraction, which is no date."""
DECADE_WORDS = words("the her his their our my late early mid in")
IDENTIFIERS = words(
    "room flight gate route highway bus train channel code pin zip zipcode extension http https "
    "error status order ticket case suite apt apartment unit box account confirmation invoice "
    "reference isbn number id passport locker platform line model interstate area policy sku"
)
NUMBERED = words(
    "version python release ios android windows ubuntu java node chapter part volume act "
    "section phase appendix level title article bowl type class step stage book episode season"
)
RULERS = words(
    "Henry Elizabeth Louis Charles George William Edward Richard James Paul Benedict Philip "
    "Napoleon Catherine Peter Alexander Frederick Nicholas Francis Pius Leo Mary Ramses Otto "
    "Leopold Ivan Gregory Clement Innocent Urban"
)

TITLES = table(
    "dr = Doctor | mr = Mister | mrs = Missus | ms = Miz | st = Saint | mt = Mount | ft = Fort"
)
AFTER_NAME = {"dr": "Drive", "st": "Street"}
ABBREVIATIONS = table(
    "prof = Professor | rev = Reverend | hon = Honorable | gen = General | col = Colonel | "
    "sgt = Sergeant | capt = Captain | lt = Lieutenant | sen = Senator | rep = Representative | "
    "gov = Governor | pres = President | jr = Junior | sr = Senior | dept = department | "
    "inc = Incorporated | ltd = Limited | co = Company | corp = Corporation | bros = Brothers | "
    "vs = versus | etc = et cetera | e.g = for example | i.e = that is | eg = for example | "
    "ie = that is | cf = compare | approx = approximately | est = established | ca = circa | "
    "a.k.a = also known as | w.r.t = with respect to | ave = Avenue | blvd = Boulevard | "
    "rd = Road | ln = Lane | hwy = Highway | apt = Apartment | ste = Suite | bldg = Building | "
    "govt = government | min = minimum | max = maximum | avg = average | temp = temperature | "
    "tel = telephone | ext = extension | mon = Monday | tue = Tuesday | tues = Tuesday | "
    "wed = Wednesday | "
    "thu = Thursday | thur = Thursday | thurs = Thursday | fri = Friday | sat = Saturday | "
    "sun = Sunday | appt = appointment | ph.d = P H D | b.sc = B S C | m.sc = M S C | "
    "incl = including | ref = reference | acct = account | "
    "fl = Floor | rm = Room | ct = Court | pkwy = Parkway | cir = Circle | "
    "w/ = with | w/o = without | b/c = because | n/a = not applicable "
)
CAPITAL_ONLY = words("mon tue wed thu fri sat sun gen col rep sen co est pres hon")
"""Ordinary words when written in lower case."""
NEVER_LAST = words(
    "vs e.g i.e eg ie cf approx prof rev hon gen col sgt capt lt sen rep gov pres apt ste incl ca "
    "ref acct"
)
"""Abbreviations that never end a sentence."""
STARTERS = words(
    "the a an he she it we they i you this that these those there here in on at if when while "
    "after before but and so then however is are was were do does did what who where how why my "
    "your his her our their its as for with please let no yes one most many some all"
)
"""Words that start sentences; after "U.S." they make its dot a full stop."""
WITHOUT_DOT = frozenset(
    ("vs", "etc", "approx", "ext", "w/", "w/o", "b/c", "n/a", "a.k.a", "ave", "blvd")
)
BEFORE_NUMBER = table(
    "no = number | nos = numbers | p = page | pp = pages | fig = figure | vol = volume | "
    "ch = chapter | sec = section | art = article | pt = part | ext = extension | "
    "eq = equation | ver = version"
)
NUMBERED_THINGS = words("phone tracking card member employee serial part job rx customer")
"""Words before "#" that are not before a bare number: "your tracking # is"."""
KEYS = {"*": "star", "#": "pound"}
"""Keys of a telephone."""
RELATIONS = frozenset("≈≅≃≤≥<>")
"""Signs that say "is" between two quantities."""
SIGNS = {
    "&": "and",
    "−": "minus",
    "·": "times",
    "√": "the square root of",
    "∞": "infinity",
    "§": "section",
    "©": "copyright",
    "№": "number",
    "°": "degrees",
    "°C": "degrees Celsius",
    "°F": "degrees Fahrenheit",
    "℃": "degrees Celsius",
    "℉": "degrees Fahrenheit",
    "‰": "per mille",
    "€": "euros",
    "£": "pounds",
    "->": "to",
    "=>": "to",
    "<-": "from",
    "←": "from",
    "↔": "to and from",
    "↑": "up",
    "↓": "down",
    "!=": "is not",
    "<=": "at most",
    ">=": "at least",
    "==": "equals",
    "≅": "about",
    "≃": "about",
    "∓": "minus or plus",
    "+": "plus",
    "=": "equals",
    "@": "at",
    "%": "percent",
    "×": "times",
    "÷": "divided by",
    "*": "times",
    "<": "less than",
    ">": "greater than",
    "≠": "is not",
    "≈": "about",
    "→": "to",
    "≤": "at most",
    "≥": "at least",
    "±": "plus or minus",
    "C#": "C sharp",
    "F#": "F sharp",
    "C++": "C plus plus",
    "AT&T": "AT and T",
    "and/or": "and or",
    "he/she": "he or she",
    "his/her": "his or her",
    ".NET": "dot net",
}
