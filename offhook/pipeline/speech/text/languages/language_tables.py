"""What each language except English reads in a special way; spoken_languages.py holds the rules.

Names of units, months and most currencies come from Babel (CLDR).
"""

from dataclasses import dataclass, field

from offhook.pipeline.speech.text.word_lists import table, words

UNIT_IDS = table(
    "kg = mass-kilogram | g = mass-gram | mg = mass-milligram | t = mass-tonne | "
    "µg = mass-microgram | μg = mass-microgram | mcg = mass-microgram | µm = length-micrometer | "
    "μm = length-micrometer | dl = volume-deciliter | dL = volume-deciliter | "
    "cl = volume-centiliter | cL = volume-centiliter | mA = electric-milliampere | "
    "MW = power-megawatt | GW = power-gigawatt | Ω = electric-ohm | kJ = energy-kilojoule | "
    "hPa = pressure-hectopascal | mmHg = pressure-millimeter-ofhg | "
    "km = length-kilometer | m = length-meter | cm = length-centimeter | "
    "mm = length-millimeter | l = volume-liter | L = volume-liter | ml = volume-milliliter | "
    "mL = volume-milliliter | km/h = speed-kilometer-per-hour | m/s = speed-meter-per-second | "
    "m² = area-square-meter | m2 = area-square-meter | km² = area-square-kilometer | "
    "m³ = volume-cubic-meter | ha = area-hectare | W = power-watt | kW = power-kilowatt | "
    "kWh = energy-kilowatt-hour | V = electric-volt | Hz = frequency-hertz | "
    "kHz = frequency-kilohertz | MHz = frequency-megahertz | GHz = frequency-gigahertz | "
    "KB = digital-kilobyte | MB = digital-megabyte | GB = digital-gigabyte | "
    "TB = digital-terabyte | h = duration-hour | min = duration-minute | s = duration-second | "
    "ms = duration-millisecond | °C = temperature-celsius | ℃ = temperature-celsius | "
    "°F = temperature-fahrenheit | ℉ = temperature-fahrenheit | ° = angle-degree | "
    "kcal = energy-kilocalorie | mi = length-mile | mph = speed-mile-per-hour"
)
CYRILLIC_UNITS = table(
    "кг = kg | г = g | мг = mg | т = t | км = km | м = m | см = cm | мм = mm | л = l | "
    "мл = ml | км/ч = km/h | м/с = m/s | м² = m² | ч = h | мин = min | сек = s | с = s | "
    "кВт = kW | Вт = W | ГБ = GB | МБ = MB | ккал = kcal"
)
CURRENCY_SIGNS = table(
    "₺ = TRY | ₴ = UAH | ₪ = ILS | zł = PLN | Kč = CZK | C$ = CAD | A$ = AUD | "
    "$ = USD | € = EUR | £ = GBP | ¥ = JPY | ￥ = JPY | ₽ = RUB | ₩ = KRW | R$ = BRL | "
    "₹ = INR | US$ = USD | Fr. = CHF"
)
CURRENCY_CODES = words(
    "PLN CZK SEK NOK DKK TRY MXN ZAR USD EUR GBP JPY CNY RUB KRW BRL CHF INR CAD AUD"
)


@dataclass(frozen=True, eq=False)
class Language:
    code: str
    """ISO 639-1 code; also the locale of num2words and Babel."""
    decimal: str
    """The decimal mark, "," or "."."""
    point: str
    minus: str
    to: str
    """Word between the ends of a range."""
    number: str
    """Word for "#" before a number."""
    signs: dict[str, str]
    """Words for &, +, =, % and the symbols of addresses."""
    money: dict[str, tuple[str, ...]]
    """Common names of a currency: one, many (Russian: one, few, many)."""
    cents: str
    """Word between the whole and the hundredths of an amount; empty if decimals are read."""
    hour: str
    """Pattern of a full hour, with {hour}."""
    minute: str
    """Pattern of any other time, with {hour} and {minute}."""
    date: str
    """Pattern with {day}, {month} and {year}."""
    abbreviations: dict[str, str] = field(default_factory=dict)
    """Keys are in lower case, without the last dot."""
    units: dict[str, str] = field(default_factory=dict)
    """Patterns with {}, for units that Babel lacks or words awkwardly."""
    feminine: frozenset[str] = frozenset()
    """Feminine singular nouns whose ending does not show it."""
    more_signs: dict[str, str] = field(default_factory=dict)
    """Words for other signs."""
    power: str = ""
    """Word between a number and its power; empty if powers are left as written."""
    parts: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Words for fractions by their denominator: one, and many."""
    keys: tuple[str, str] = ("", "")
    """Names of the keys * and # of a telephone; empty if they are left as written."""
    greek: dict[str, str] = field(default_factory=dict)
    """Names of Greek letters, small and capital."""
    scales: frozenset[str] = frozenset()
    """Words for a million and more, which precede the currency ("2 millones de euros")."""


def _money(text: str) -> dict[str, tuple[str, ...]]:
    """Returns the forms of each currency's name by its code; a single form stands for all."""
    forms = {code: tuple(names.split("/")) for code, names in table(text).items()}
    return {code: names if len(names) > 1 else names * 2 for code, names in forms.items()}


def _parts(text: str) -> dict[int, tuple[str, str]]:
    """Returns the names of fractions by their denominator."""
    names = {int(number): name.partition("/") for number, name in table(text).items()}
    return {number: (one, many) for number, (one, _, many) in names.items()}


def _signs(text: str) -> dict[str, str]:
    """Returns the symbols' names, in this order, with "_" for a space."""
    names = [word.replace("_", " ") for word in text.split()]
    return dict(zip(["&", "+", "=", "%", ".", "/", "-", "_", "@", ":"], names, strict=True))


def _greek(names: str) -> dict[str, str]:
    """Returns the names of Greek letters, given in the order of the alphabet."""
    letters = "αβγδεζηθικλμνξοπρστυφχψω"
    named = dict(zip(letters, names.split(), strict=True))
    return named | {letter.upper(): name for letter, name in named.items()}


GERMAN = Language(
    *("de", ",", "Komma", "minus", "bis", "Nummer"),
    _signs("und plus gleich Prozent Punkt Schrägstrich Bindestrich Unterstrich ät Port"),
    money=_money(
        "USD = Dollar | EUR = Euro | GBP = Pfund | JPY = Yen | CHF = Franken | CNY = Yuan"
    ),
    cents=" ",
    hour="{hour} Uhr",
    minute="{hour} Uhr {minute}",
    date="{day} {month} {year}",
    abbreviations=table(
        "z.b = zum Beispiel | z. b = zum Beispiel | d.h = das heißt | d. h = das heißt | "
        "u.a = unter anderem | u. a = unter anderem | usw = und so weiter | "
        "bzw = beziehungsweise | ca = circa | dr = Doktor | prof = Professor | nr = Nummer | "
        "str = Straße | tel = Telefon | mio = Millionen | mrd = Milliarden | evtl = eventuell | "
        "inkl = inklusive | ggf = gegebenenfalls | hr = Herr | fr = Frau | st = Sankt | "
        "med = med | std = Stunden | min = Minuten | vgl = vergleiche | max = maximal | "
        "abs = Absatz | zzgl = zuzüglich | bspw = beispielsweise | mwst = Mehrwertsteuer | "
        "mind = mindestens | geb = geboren | pers = Personen | tgl = täglich | gl = Gleis"
    ),
    scales=frozenset(("Million", "Millionen", "Milliarde", "Milliarden", "Tausend", "tausend")),
    more_signs=table(
        "× = mal | · = mal | * = mal | ÷ = geteilt durch | ≠ = ungleich | ≈ = ungefähr | "
        "~ = ungefähr | < = kleiner als | > = größer als | ≤ = höchstens | ≥ = mindestens | "
        "± = plus minus | − = minus | → = nach | √ = Wurzel aus | ∞ = unendlich | § = Paragraf | "
        "© = Copyright | ‰ = Promille | ° = Grad | °C = Grad Celsius | € = Euro | £ = Pfund"
    ),
    power="hoch",
    keys=("Stern", "Raute"),
    greek=_greek(
        "Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa Lambda My "
        "Ny Xi Omikron Pi Rho Sigma Tau Ypsilon Phi Chi Psi Omega"
    ),
    parts=_parts(
        "2 = ein halb/halbe | 3 = ein Drittel/Drittel | 4 = ein Viertel/Viertel | "
        "5 = ein Fünftel/Fünftel | 6 = ein Sechstel/Sechstel | 8 = ein Achtel/Achtel | "
        "10 = ein Zehntel/Zehntel"
    ),
)
SPANISH = Language(
    *("es", ",", "coma", "menos", "a", "número"),
    _signs("y más igual por_ciento punto barra guion guion_bajo arroba puerto"),
    money=_money(
        "USD = dólar/dólares | EUR = euro/euros | GBP = libra/libras | JPY = yen/yenes | "
        "BRL = real/reales | CNY = yuan/yuanes"
    ),
    cents=" con ",
    hour="{hour}",
    minute="{hour} y {minute}",
    date="{day} de {month} de {year}",
    abbreviations=table(
        "sr = señor | sra = señora | srta = señorita | dr = doctor | dra = doctora | "
        "ud = usted | uds = ustedes | etc = etcétera | p.ej = por ejemplo | "
        "p. ej = por ejemplo | núm = número | n.º = número | nº = número | "
        "aprox = aproximadamente | tel = teléfono | av = avenida | avda = avenida | "
        "incl = incluido | izq = izquierda | dpto = departamento | máx = máximo | mín = mínimo | "
        "esq = esquina | pza = plaza | izda = izquierda | dcha = derecha | ctra = carretera | "
        "c/ = calle | "
        "ref = referencia | pág = página | "
        "ee.uu = Estados Unidos | ee. uu = Estados Unidos"
    ),
    scales=frozenset(("mil", "millón", "millones", "billón", "billones")),
    more_signs=table(
        "× = por | · = por | * = por | ÷ = dividido por | ≠ = distinto de | ≈ = aproximadamente | "
        "~ = aproximadamente | < = menor que | > = mayor que | ≤ = como máximo | "
        "≥ = como mínimo | ± = más menos | − = menos | → = a | √ = raíz de | ∞ = infinito | "
        "§ = sección | © = copyright | ‰ = por mil | ° = grados | °C = grados Celsius | "
        "€ = euros | £ = libras"
    ),
    power="elevado a",
    keys=("asterisco", "almohadilla"),
    greek=_greek(
        "alfa beta gamma delta épsilon dseta eta theta iota kappa lambda mi "
        "ni xi ómicron pi ro sigma tau ípsilon fi ji psi omega"
    ),
    parts=_parts(
        "2 = un medio/medios | 3 = un tercio/tercios | 4 = un cuarto/cuartos | "
        "5 = un quinto/quintos | 6 = un sexto/sextos | 8 = un octavo/octavos | "
        "10 = un décimo/décimos"
    ),
)
FRENCH = Language(
    *("fr", ",", "virgule", "moins", "à", "numéro"),
    _signs("et plus égal pour_cent point slash tiret tiret_bas arobase port"),
    money=_money(
        "USD = dollar/dollars | EUR = euro/euros | GBP = livre/livres | JPY = yen/yens | "
        "CHF = franc/francs | CNY = yuan/yuans"
    ),
    cents=" ",
    hour="{hour} heures",
    minute="{hour} heures {minute}",
    date="{day} {month} {year}",
    abbreviations=table(
        "m = monsieur | mm = messieurs | mme = madame | mlle = mademoiselle | me = maître | "
        "dr = docteur | "
        "pr = professeur | etc = et cetera | p.ex = par exemple | p. ex = par exemple | "
        "pl = place | rte = route | bât = bâtiment | "
        "incl = inclus | max = maximum | "
        "n° = numéro | env = environ | tél = téléphone | av = avenue | bd = boulevard | "
        "st = Saint | ste = Sainte | mmes = mesdames | réf = référence | c.-à-d = c'est-à-dire"
    ),
    feminine=words(
        "heure minute seconde milliseconde livre tonne kilocalorie roupie semaine année page fois "
        "voiture chambre table place commande facture carte lettre"
    ),
    scales=frozenset(("mille", "million", "millions", "milliard", "milliards")),
    more_signs=table(
        "× = fois | · = fois | * = fois | ÷ = divisé par | ≠ = différent de | ≈ = environ | "
        "~ = environ | < = inférieur à | > = supérieur à | ≤ = au plus | ≥ = au moins | "
        "± = plus ou moins | − = moins | → = vers | √ = racine de | ∞ = infini | § = paragraphe | "
        "© = copyright | ‰ = pour mille | ° = degrés | °C = degrés Celsius | € = euros | "
        "£ = livres"
    ),
    power="puissance",
    keys=("étoile", "dièse"),
    greek=_greek(
        "alpha bêta gamma delta epsilon zêta êta thêta iota kappa lambda mu "
        "nu xi omicron pi rhô sigma tau upsilon phi khi psi oméga"
    ),
    parts=_parts(
        "2 = un demi/demis | 3 = un tiers/tiers | 4 = un quart/quarts | "
        "5 = un cinquième/cinquièmes | 6 = un sixième/sixièmes | 8 = un huitième/huitièmes | "
        "10 = un dixième/dixièmes"
    ),
)
ITALIAN = Language(
    *("it", ",", "virgola", "meno", "a", "numero"),
    _signs("e più uguale per_cento punto barra trattino trattino_basso chiocciola porta"),
    money=_money(
        "USD = dollaro/dollari | EUR = euro | GBP = sterlina/sterline | JPY = yen | "
        "CHF = franco/franchi"
    ),
    cents=" e ",
    hour="{hour}",
    minute="{hour} e {minute}",
    date="{day} {month} {year}",
    abbreviations=table(
        "sig = signor | sig.ra = signora | dott = dottor | dott.ssa = dottoressa | "
        "dr = dottor | ecc = eccetera | p.es = per esempio | p. es = per esempio | "
        "es = esempio | tel = telefono | pag = pagina | ing = ingegner | avv = avvocato | "
        "int = interno | v.le = viale | p.za = piazza | p.zza = piazza | c.so = corso | "
        "l.go = largo | "
        "rif = riferimento | "
        "incl = incluso | max = massimo | prof = professor | ca = circa | n° = numero | n = numero"
    ),
    feminine=words("volta notte parte mano"),
    more_signs=table(
        "× = per | · = per | * = per | ÷ = diviso | ≠ = diverso da | ≈ = circa | ~ = circa | "
        "< = minore di | > = maggiore di | ≤ = al massimo | ≥ = almeno | ± = più o meno | "
        "− = meno | → = a | √ = radice di | ∞ = infinito | § = paragrafo | © = copyright | "
        "‰ = per mille | ° = gradi | °C = gradi Celsius | € = euro | £ = sterline"
    ),
    power="alla",
    parts=_parts(
        "2 = un mezzo/mezzi | 3 = un terzo/terzi | 4 = un quarto/quarti | 5 = un quinto/quinti | "
        "6 = un sesto/sesti | 8 = un ottavo/ottavi | 10 = un decimo/decimi"
    ),
    keys=("asterisco", "cancelletto"),
    scales=frozenset(("mila", "milione", "milioni", "miliardo", "miliardi")),
)
PORTUGUESE = Language(
    *("pt", ",", "vírgula", "menos", "a", "número"),
    _signs("e mais igual por_cento ponto barra hífen sublinhado arroba porta"),
    money=_money(
        "USD = dólar/dólares | EUR = euro/euros | GBP = libra/libras | BRL = real/reais | "
        "JPY = iene/ienes"
    ),
    cents=" e ",
    hour="{hour} horas",
    minute="{hour} e {minute}",
    date="{day} de {month} de {year}",
    abbreviations=table(
        "sr = senhor | sra = senhora | dr = doutor | dra = doutora | etc = et cetera | "
        "p.ex = por exemplo | p. ex = por exemplo | ex = exemplo | nº = número | n.º = número | "
        "tel = telefone | av = avenida | aprox = aproximadamente | pág = página | "
        "apto = apartamento | esq = esquerdo | dto = direito | r = rua | ref = referência | "
        "prof = professor | "
        "profa = professora | incl = incluído | máx = máximo"
    ),
    more_signs=table(
        "× = vezes | · = vezes | * = vezes | ÷ = dividido por | ≠ = diferente de | "
        "≈ = cerca de | ~ = cerca de | < = menor que | > = maior que | ≤ = no máximo | "
        "≥ = no mínimo | ± = mais ou menos | − = menos | → = para | √ = raiz de | "
        "∞ = infinito | § = parágrafo | © = copyright | ‰ = por mil | ° = graus | "
        "°C = graus Celsius | € = euros | £ = libras"
    ),
    power="elevado a",
    parts=_parts(
        "2 = um meio/meios | 3 = um terço/terços | 4 = um quarto/quartos | "
        "5 = um quinto/quintos | 6 = um sexto/sextos | 8 = um oitavo/oitavos | "
        "10 = um décimo/décimos"
    ),
    keys=("asterisco", "cardinal"),
    scales=frozenset(("mil", "milhão", "milhões", "bilhão", "bilhões")),
)
DUTCH = Language(
    *("nl", ",", "komma", "min", "tot", "nummer"),
    _signs("en plus is procent punt schuine_streep streepje liggend_streepje apenstaartje poort"),
    money=_money("USD = dollar | EUR = euro | GBP = pond | JPY = yen | CHF = frank | CNY = yuan"),
    cents=" ",
    hour="{hour} uur",
    minute="{hour} uur {minute}",
    date="{day} {month} {year}",
    abbreviations=table(
        "dhr = de heer | mevr = mevrouw | dr = dokter | prof = professor | nr = nummer | "
        "tel = telefoon | bijv = bijvoorbeeld | bv = bijvoorbeeld | d.w.z = dat wil zeggen | "
        "enz = enzovoort | ca = circa | incl = inclusief | excl = exclusief | str = straat | "
        "max = maximaal | "
        "st = Sint | blz = bladzijde | o.a = onder andere | t/m = tot en met"
    ),
    scales=frozenset(("duizend", "miljoen", "miljard")),
    more_signs=table(
        "× = keer | · = keer | * = keer | ÷ = gedeeld door | ≠ = niet gelijk aan | "
        "≈ = ongeveer | ~ = ongeveer | < = kleiner dan | > = groter dan | ≤ = hoogstens | "
        "≥ = minstens | ± = plus min | − = min | → = naar | √ = wortel van | ∞ = oneindig | "
        "§ = paragraaf | © = copyright | ‰ = promille | ° = graden | °C = graden Celsius | "
        "€ = euro | £ = pond"
    ),
    power="tot de macht",
    parts=_parts("2 = een half/halve | 3 = een derde/derde | 4 = een kwart/kwart"),
    keys=("sterretje", "hekje"),
)
RUSSIAN = Language(
    *("ru", ",", "", "минус", "—", "номер"),
    _signs("и плюс равно процентов точка слэш дефис подчёркивание собака порт"),
    money=_money(
        "USD = доллар/доллара/долларов | EUR = евро/евро/евро | RUB = рубль/рубля/рублей | "
        "GBP = фунт/фунта/фунтов | JPY = иена/иены/иен | CNY = юань/юаня/юаней"
    ),
    cents=" ",
    hour="{hour} ноль ноль",
    minute="{hour} {minute}",
    date="{day} {month} {year} года",
    abbreviations=table(
        "т.е = то есть | т. е = то есть | т.д = так далее | т. д = так далее | "
        "т.п = тому подобное | т. п = тому подобное | др = другие | ул = улица | д = дом | "
        "кв = квартира | стр = страница | им = имени | напр = например | тел = телефон | "
        "руб = рублей | тыс = тысяч | пр = проспект"
    ),
    scales=frozenset(("тыс", "млн", "млрд")),
)
KOREAN = Language(
    *("ko", ".", "점", "마이너스", "에서", "번호"),
    _signs("앤드 플러스 는 퍼센트 점 슬래시 하이픈 밑줄 골뱅이 포트"),
    money=_money("USD = 달러 | EUR = 유로 | KRW = 원 | JPY = 엔 | CNY = 위안 | GBP = 파운드"),
    cents="",
    hour="{hour} 시",
    minute="{hour} 시 {minute} 분",
    date="{year}년 {month} {day}일",
    units={"h": "{} 시간", "min": "{} 분", "s": "{} 초", "kg": "{} 킬로그램", "km": "{} 킬로미터"},
)
JAPANESE = Language(
    *("ja", ".", "点", "マイナス", "から", "番号"),
    _signs(
        "アンド プラス イコール パーセント ドット スラッシュ ハイフン アンダーバー アット ポート"
    ),
    money=_money("USD = ドル | EUR = ユーロ | JPY = 円 | CNY = 元 | GBP = ポンド | KRW = ウォン"),
    cents="",
    hour="{hour}時",
    minute="{hour}時{minute}分",
    date="{year}年{month}{day}日",
    units=table(
        "h = {}時間 | min = {}分 | s = {}秒 | kg = {}キログラム | km = {}キロメートル | "
        "g = {}グラム | m = {}メートル | cm = {}センチメートル | ° = {}度 | ℃ = {}度 | "
        "°C = {}度 | km/h = 時速{}キロメートル | L = {}リットル"
    ),
)
CHINESE = Language(
    *("zh", ".", "点", "负", "到", "号"),
    _signs("和 加 等于 百分之 点 斜杠 横线 下划线 艾特 端口"),
    money=_money("USD = 美元 | EUR = 欧元 | JPY = 元 | CNY = 元 | GBP = 英镑 | KRW = 韩元"),
    cents="",
    hour="{hour}点",
    minute="{hour}点{minute}分",
    date="{year}年{month}{day}日",
    units=table(
        "kg = {}公斤 | g = {}克 | mg = {}毫克 | km = {}公里 | m = {}米 | cm = {}厘米 | "
        "mm = {}毫米 | L = {}升 | l = {}升 | ml = {}毫升 | km/h = 每小时{}公里 | "
        "m² = {}平方米 | m2 = {}平方米 | h = {}小时 | min = {}分钟 | s = {}秒 | °C = {}摄氏度 | "
        "℃ = {}摄氏度 | ° = {}度 | kW = {}千瓦 | kWh = {}千瓦时 | kcal = {}千卡 | "
        "mL = {}毫升"
    ),
)
LANGUAGES = {
    language.code: language
    for language in (
        GERMAN,
        SPANISH,
        FRENCH,
        ITALIAN,
        PORTUGUESE,
        DUTCH,
        RUSSIAN,
        KOREAN,
        JAPANESE,
        CHINESE,
    )
}
