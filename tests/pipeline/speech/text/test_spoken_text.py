"""Spoken text: what a voice is given to say for what an agent writes."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.speech.text.spoken_text import SpokenWord, TextReader
from offhook.pipeline.speech.text.written_words import MAX_WORD


def read(*deltas: str, language: str = "en", normalise: bool = True) -> list[SpokenWord]:
    reader = TextReader(language, normalise)
    words = [word for delta in deltas for word in reader.feed(delta)] + reader.finish()
    assert "".join(word.text for word in words) == "".join(deltas)
    return words


def said(*deltas: str, language: str = "en", normalise: bool = True) -> str:
    return "".join(word.spoken for word in read(*deltas, language=language, normalise=normalise))


ENGLISH = {
    # money
    "It costs $3.50.": "It costs three dollars and fifty cents.",
    "$3.50 million": "three point five million dollars",
    "$1": "one dollar",
    "$1,234.56": "one thousand two hundred thirty-four dollars, and fifty-six cents",
    "$0.99 each": "ninety-nine cents each",
    "$5.00 off": "five dollars off",
    "€20, please": "twenty euros, please",
    "5 € or 5€": "five euros or five euros",
    "£5.01": "five pounds and one penny",
    "¥500": "five hundred yen",
    "$5M and $1.5B": "five million dollars and one point five billion dollars",
    "a $20k car": "a twenty thousand dollars car",
    "$10-$20": "ten to twenty dollars",
    "$5-10 million": "five to ten million dollars",
    "20 USD": "twenty US dollars",
    "EUR 20": "twenty euros",
    "$12/month": "twelve dollars per month",
    "-$5": "minus five dollars",
    "50¢": "fifty cents",
    "A$5": "five Australian dollars",
    # percent, measures
    "5% and 3.5%": "five percent and three point five percent",
    "5-10%": "five to ten percent",
    "100 %": "one hundred percent",
    "72°F": "seventy-two degrees Fahrenheit",
    "-5°C": "minus five degrees Celsius",
    "a 45° angle": "a forty-five degrees angle",
    "5 kg": "five kilograms",
    "1 kg": "one kilogram",
    "100km/h": "one hundred kilometers per hour",
    "50 mph": "fifty miles per hour",
    "32GB": "thirty-two gigabytes",
    "1.5 MB": "one point five megabytes",
    "6'2\" tall": "six foot two tall",
    "5 ft 3in": "five feet three inches",
    "3 in the room": "three in the room",
    "20-30 min": "twenty to thirty minutes",
    "7 oz. of it": "seven ounces of it",
    "It weighs 5 kg. Lift it.": "It weighs five kilograms. Lift it.",
    "3x faster": "three times faster",
    "4x4": "four by four",
    # numbers
    "1,000,000 people": "one million people",
    "1234 apples": "one thousand two hundred thirty-four apples",
    "0.5": "zero point five",
    ".5": "point five",
    "3.14": "three point one four",
    "-5 and −7": "minus five and minus seven",
    "007": "zero zero seven",
    "10-15 people": "ten to fifteen people",
    "pages 3–5": "pages three to five",
    "2.5 million": "two point five million",
    "<5 or >10": "less than five or more than ten",
    "~50": "about fifty",
    "10k users": "ten thousand users",
    "1st, 2nd, 23rd": "first, second, twenty-third",
    "the 101st": "the one hundred first",
    "1/2 cup": "one half cup",
    "3/4": "three quarters",
    "2/3 full": "two thirds full",
    "1 1/2 cups": "one and a half cups",
    "1½ cups": "one and a half cups",
    "½": "one half",
    "24/7": "twenty-four seven",
    "4/20": "four out of twenty",
    "50/50": "fifty fifty",
    "1/4 tsp. salt": "one quarter teaspoon salt",
    "2 1/2 lbs": "two and a half pounds",
    "6' tall": "six feet tall",
    "1e-5": "one times ten to the minus five",
    "2^10": "two to the power of ten",
    "x²": "x squared",
    "16:9": "sixteen to nine",
    "2 + 2 = 4": "two plus two equals four",
    # years and dates
    "in 1984": "in nineteen eighty-four",
    "in 2005": "in two thousand five",
    "in 2024": "in twenty twenty-four",
    "by 1776": "by seventeen seventy-six",
    "in 1905": "in nineteen oh-five",
    "1990-1995": "nineteen ninety to nineteen ninety-five",
    "the 1990s": "the nineteen nineties",
    "the '80s": "the eighties",
    "the 2010s": "the twenty tens",
    "in '85": "in eighty-five",
    "in her 30s": "in her thirties",
    "wait 30s": "wait thirty seconds",
    "2024-01-15": "January fifteenth, twenty twenty-four",
    "01/15/2024": "January fifteenth, twenty twenty-four",
    "15/01/2024": "January fifteenth, twenty twenty-four",
    "January 15, 2024": "January fifteenth, twenty twenty-four",
    "Jan. 5": "January fifth",
    "5 Jan 2024": "the fifth of January twenty twenty-four",
    "15 January": "the fifteenth of January",
    "the 3rd of May": "the third of May",
    "May 3rd": "May third",
    "on 1/15": "on January fifteenth",
    "You may 5": "You may five",
    "Mon. and Fri.": "Monday and Friday.",
    # times
    "3:30pm": "three thirty PM",
    "at 3 pm": "at three PM",
    "10:30 a.m. sharp": "ten thirty AM sharp",
    "It opens at 9 a.m. Come by.": "It opens at nine AM. Come by.",
    "14:05": "fourteen oh five",
    "10:00": "ten o'clock",
    "7:00 PM": "seven PM",
    "9-5pm": "nine to five PM",
    "10am-5pm": "ten AM to five PM",
    "from 10:00-12:30": "from ten o'clock to twelve thirty",
    "2024-01-15T10:30:00Z": "January fifteenth, twenty twenty-four, ten thirty",
    # telephone numbers and names of things
    "call 555-123-4567": "call five five five, one two three, four five six seven",
    "(555) 123-4567.": "five five five, one two three, four five six seven.",
    "+1 800 555 0199": "plus one, eight hundred, five five five, zero one nine nine",
    "+44 20 7946 0958": "plus four four, two zero, seven nine four six, zero nine five eight",
    "1-800-FLOWERS": "one, eight hundred, FLOWERS",
    "St. Paul, MN 55101": "Saint Paul, MN five five one zero one",
    "order #A1B2": "order number A one B two",
    "$49.99/mo. for": "forty-nine dollars and ninety-nine cents per month for",
    "1-800-555-0199": "one, eight hundred, five five five, zero one nine nine",
    "HTTP 404": "HTTP four oh four",
    "error 500": "error five hundred",
    "Room 101": "Room one oh one",
    "flight 1234": "flight twelve thirty-four",
    "zip 94103": "zip nine four one zero three",
    "order #4821937": "order number four eight two, one nine three seven",
    "#5": "number five",
    "Apt. 4B": "Apartment four B",
    "GPT-4": "GPT four",
    "an A320": "an A three twenty",
    "code AB12CD": "code A B one two C D",
    "v1.2.3": "version one point two point three",
    "version 3.11": "version three point eleven",
    "192.168.1.1": "one ninety-two dot one sixty-eight dot one dot one",
    # addresses
    "see https://www.example.com/path-one?x=1.": "see example dot com slash path dash one.",
    "example.org": "example dot org",
    "bob.w@example.co.uk": "bob dot w at example dot co dot U K",
    "http://localhost:8080/": "localhost port eight zero eight zero",
    # abbreviations
    "Dr. Smith": "Doctor Smith",
    "12 Main Dr.": "twelve Main Drive.",
    "St. Louis": "Saint Louis",
    "Main St. is wet": "Main Street is wet",
    "Mr. and Mrs. Jones": "Mister and Missus Jones",
    "No. 5": "Number five",
    "No. Not five.": "No. Not five.",
    "apples, pears, etc. Then": "apples, pears, et cetera. Then",
    "e.g. this, i.e. that": "for example this, that is that",
    "U.S.A. is": "U S A is",
    "in the U.S. Then": "in the U S. Then",
    "the U.S. Senate": "the U S Senate",
    "9 PM EST.": "nine PM EST.",
    "Smith Jr. vs. Jones": "Smith Junior versus Jones",
    "a Ph.D. student": "a P H D student",
    "fig. 3 on p. 4": "figure three on page four",
    # Roman numbers, signs, names
    "Chapter IV": "Chapter four",
    "World War II": "World War two",
    "Henry VIII": "Henry the eighth",
    "I am": "I am",
    "R&D at AT&T": "R and D at AT and T",
    "C++ or C#": "C plus plus or C sharp",
    "@bob #thanks": "at bob hashtag thanks",
    "and/or": "and or",
    "w/o sugar": "without sugar",
    "a 5-year-old": "a five-year-old",
    "a 20-minute walk": "a twenty-minute walk",
    "snake_case": "snake case",
    # markup and pictures
    "**Bold** and _soft_, `code`": "Bold and soft, code",
    "## Title\n\n- one\n* two": "Title. one. two",
    "1. First\n2. Second": "one. First. two. Second",
    "[the page](https://a.b/c), here": "the page, here",
    "Hi 👋🏽 there 😀!": "Hi there!",
    "<b>bold</b> &amp; more": "bold and more",
    "| a | b |\n|---|---|": "a, b",
    "so—it is": "so—it is",
    "It’s “fine”.": "It’s “fine”.",
    "": "",
    " \n ": "",
}


@pytest.mark.parametrize(("written", "spoken"), ENGLISH.items())
def test_english(written: str, spoken: str) -> None:
    assert said(written) == spoken


OTHERS = {
    "de": {
        "Das kostet 3,50 €.": "Das kostet drei Euro fünfzig.",
        "1.234,5 und 1 Stunde": "eintausendzweihundertvierunddreißig Komma fünf und eine Stunde",
        "am 15. Januar 2024": "am fünfzehnten Januar zweitausendvierundzwanzig",
        "seit 1984": "seit neunzehnhundertvierundachtzig",
        "der 3. Mann": "der dritte Mann",
        "um 14:30 Uhr": "um vierzehn Uhr dreißig",
        "5 % bei -3 °C": "fünf Prozent bei minus drei Grad Celsius",
        "z. B. ca. 5 kg": "zum Beispiel circa fünf Kilogramm",
        "100 km/h": "einhundert Kilometer pro Stunde",
        "2 Millionen €": "zwei Millionen Euro",
        "Dr. Müller, Nr. 5": "Doktor Müller, Nummer fünf",
        "info@firma.de": "info ät firma Punkt D E",
    },
    "es": {
        "Cuesta 3,50 €.": "Cuesta tres euros con cincuenta.",
        "1.234 personas": "mil doscientos treinta y cuatro personas",
        "el 15 de enero de 2024": "el quince de enero de dos mil veinticuatro",
        "21 kg y 1 libra": "veintiún kilogramos y una libra",
        "5 % a 20 °C": "cinco por ciento a veinte grados Celsius",
        "3º piso, 1.ª vez": "tercero piso, primera vez",
        "a las 14:30": "a las catorce y treinta",
        "Sr. García, p. ej.": "señor García, por ejemplo.",
        "10-15 días": "diez a quince días",
    },
    "fr": {
        "Ça coûte 3,50 €.": "Ça coûte trois euros cinquante.",
        "1 234 567 habitants": "un million deux cent trente-quatre mille cinq cent soixante-sept "
        "habitants",
        "le 1 janvier 2024": "le premier janvier deux mille vingt-quatre",
        "à 14h30": "à quatorze heures trente",
        "21 minutes": "vingt et une minutes",
        "5 % de 80 km": "cinq pour cent de quatre-vingts kilomètres",
        "le 2e étage, la 1re": "le deuxième étage, la première",
        "M. Dupont, n° 5": "monsieur Dupont, numéro cinq",
        "2 millions €": "deux millions d'euros",
    },
    "it": {
        "Costa 3,50 €.": "Costa tre euro e cinquanta.",
        "1.234 persone": "milleduecentotrentaquattro persone",
        "il 15 gennaio 2024": "il quindici gennaio duemilaventiquattro",
        "alle 14:30": "alle quattordici e trenta",
        "5% e 1 kg": "cinque per cento e un chilogrammo",
        "la 3ª volta": "la terza volta",
        "1 ora a 100 km/h": "una ora a cento chilometri orari",
        "Sig. Rossi, ecc.": "signor Rossi, eccetera.",
    },
    "pt": {
        "Custa R$ 3,50.": "Custa três reais e cinquenta.",
        "1.234 pessoas": "mil duzentos e trinta e quatro pessoas",
        "15 de janeiro de 2024": "quinze de janeiro de dois mil e vinte e quatro",
        "às 14:30": "às catorze e trinta",
        "5% e 2 kg": "cinco por cento e dois quilogramas",
        "a 3ª vez": "a terceira vez",
        "2 horas": "duas horas",
        "Sr. Silva a 20 °C": "senhor Silva a vinte graus Celsius",
    },
    "ru": {
        "Это стоит 22 ₽.": "Это стоит двадцать два рубля.",
        "5 $ и 1 €": "пять долларов и один евро",
        "в 2024 году": "в две тысячи двадцать четвёртом году",
        "15 января 2024 года": "пятнадцатого января две тысячи двадцать четвёртого года",
        "3,5 % и 2 %": "три целых пять десятых процента и два процента",
        "3-й этаж, 1-я линия": "третий этаж, первая линия",
        "21 минута, 2 минуты": "двадцать одна минута, две минуты",
        "2 км/ч в 14:30": "два километра в час в четырнадцать тридцать",
        "т. е. 5 кг": "то есть пять килограмм",
    },
    "ko": {
        "사과 3개를": "사과 세 개를",
        "3,500원입니다.": "삼천오백 원입니다.",
        "2024년 6월 15일": "이천이십사년 유월 십오일",
        "오후 2:30에": "오후 두 시 삼십 분에",
        "5%와 3.5%": "오 퍼센트와 삼 점 오 퍼센트",
        "1번째, 3번째": "첫 번째, 세 번째",
        "5 kg": "오 킬로그램",
        "$5": "오 달러",
    },
    "ja": {
        "価格は1,234円です。": "価格は千二百三十四円です。",
        "2024年1月15日": "二千二十四年一月十五日",
        "14:30に": "十四時三十分に",
        "3.5%です": "三点五パーセントです",
        "５kgの米": "五キログラムの米",
        "-5℃です": "マイナス五度です",
        "$5です": "五ドルです",
        "1/2": "二分の一",
    },
    "zh": {
        "价格是1234元。": "价格是一千二百三十四元。",
        "2024年1月15日": "二零二四年一月十五日",
        "下午3:05见": "下午三点零五分见",
        "3.5%的人": "百分之三点五的人",
        "我有2本书，10005个": "我有两本书，一万零五个",
        "-5℃，5kg": "负五摄氏度，五公斤",
        "¥100，$5": "一百元，五美元",
        "3/4，第3名": "四分之三，第三名",
        "电话13800138000": "电话一三八零零一三八零零零",
        "我喜欢Python 3。": "我喜欢Python 三。",
    },
}


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [(language, *case) for language, cases in OTHERS.items() for case in cases.items()],
)
def test_other_languages(language: str, written: str, spoken: str) -> None:
    assert said(written, language=language) == spoken


def test_without_normalisation_words_are_said_as_written() -> None:
    assert said("It's **$3.50**,\nDr. X 😀", normalise=False) == "It's **$3.50**, Dr. X 😀"


def test_a_language_without_rules_loses_only_markup() -> None:
    assert said("**Dobrý** den, 5 😀", language="cs") == "Dobrý den, 5"


def test_a_plain_word_goes_out_with_the_space_after_it() -> None:
    reader = TextReader("en")
    assert reader.feed("Hel") == []
    assert reader.feed("lo") == []
    assert reader.feed(" ") == [SpokenWord("Hello ", "Hello")]
    assert reader.feed(" wor") == []
    assert reader.feed("ld,\n") == [SpokenWord(" world,\n", " world,")]


def test_only_what_may_change_is_held_back() -> None:
    reader = TextReader("en")
    assert reader.feed("It costs $3") == [SpokenWord("It ", "It"), SpokenWord("costs ", " costs")]
    assert reader.feed(".50 ") == []
    assert reader.feed("million") == []
    assert reader.feed(" now ") == [
        SpokenWord("$3.50 million ", " three point five million dollars"),
        SpokenWord("now ", " now"),
    ]
    assert reader.feed("or $3. ") == [
        SpokenWord("or ", " or"),
        SpokenWord("$3. ", " three dollars."),
    ]
    assert reader.feed("Dr. ") == []
    assert [word.spoken for word in reader.feed("S")] == [" Doctor"]


def test_a_line_is_a_sentence_and_ends_what_is_held_back() -> None:
    reader = TextReader("en")
    assert [word.spoken for word in reader.feed("Total: $3\n")] == ["Total:", " three dollars."]


def test_chinese_is_said_phrase_by_phrase() -> None:
    reader = TextReader("zh")
    assert [word.text for word in reader.feed("今天天气很好，我")] == ["今天", "天气", "很"]
    assert "".join(word.text for word in reader.feed("们去")) == "好，"


PIECES = [
    *("<br>", "<b>", '<break time="1s"/>', "&nbsp;", "&amp;", "[1]", "[2]", "[laughs]", "*smiles*"),
    *(
        "\\frac{1}{2}",
        "$$",
        "$x^2$",
        "【3†a】",
        "½",
        "2½",
        "−",
        "10⁻³",
        "0800 ",
        "123 ",
        "000",
        "|",
    ),
    *(
        "000",
        "[",
        "](",
        ")",
        "(",
        "<",
        "*",
        "\\",
        "&",
        "```\n",
        "+49",
        "DE89",
        "3704",
        "–",
        "Code ist ",
    ),
    *(
        "code ",
        "PIN ",
        "is ",
        "es ",
        "4821",
        "K7QX2P",
        "your ",
        "and ",
        "116",
        "117 ",
        "Sat",
        "Mo",
        "lun.",
    ),
    *(
        "M-AB ",
        "t/m ",
        "from ",
        "to ",
        "call ",
        "112",
        "~8:00",
        "W.",
        "St.",
        "17.30 ",
        "Uhr",
        "mln ",
    ),
    *(
        "$3",
        "3",
        ".50",
        "50",
        " ",
        " ",
        " ",
        "million",
        "Dr",
        ".",
        "St",
        "Smith",
        "a.m.",
        "PM",
        "15",
    ),
    *("January", "2024", "-", "/", ":", ",", "555", "(555)", "kg", "%", "°C", "1/2", "#", "@", "&"),
    *(
        "http://a.com",
        "**",
        "[x](http://y)",
        "\n",
        "- ",
        "—",
        "😀",
        "e.g.",
        "No",
        "5th",
        "IV",
        "'90s",
    ),
    *(
        "我们",
        "年",
        "，",
        "は",
        "です",
        "개",
        "€",
        "z. B.",
        "г.",
        "году",
        "  ",
        "\t",
        "_",
        "`",
        "|",
    ),
]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=14).map("".join)
LANGUAGES = st.sampled_from(
    ["en", "zh", "de", "es", "ja", "fr", "ko", "ru", "it", "pt", "nl", "xx"]
)


@given(TEXTS, st.lists(st.integers(0, 60), max_size=12), LANGUAGES, st.booleans())
def test_words_do_not_depend_on_how_the_text_comes(
    text: str, cuts: list[int], language: str, normalise: bool
) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    deltas = [text[start:stop] for start, stop in pairwise(places)]
    whole = read(text, language=language, normalise=normalise)
    assert read(*deltas, language=language, normalise=normalise) == whole
    assert read(*text, language=language, normalise=normalise) == whole


@given(st.lists(st.sampled_from(PIECES), min_size=100, max_size=200).map("".join), LANGUAGES)
def test_little_is_held_back(text: str, language: str) -> None:
    reader, told = TextReader(language), 0
    for place, char in enumerate(text, 1):
        told += sum(len(word.text) for word in reader.feed(char))
        assert place - told <= 8 * 40, text[told:place]


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "de", "zh", "ko"])
def test_no_word_takes_long(language: str) -> None:
    begin = time.thread_time()
    units = (
        "a",
        "1",
        "a1",
        "1,",
        "a.",
        "1.",
        "a-",
        "1-",
        "[",
        "(",
        "a@",
        "/",
        "*",
        "<a",
        "www.",
        "$1",
    )
    for unit in (*units, "x1", "1/", "1:", "'", "&", "é1", "개1", "+1-", "²", "ö", "_", "http://a"):
        said(unit * (MAX_WORD // len(unit)) + "!", language=language)
    assert time.thread_time() - begin < 2


@pytest.mark.slow
@pytest.mark.parametrize("text", ["中", "word ", "今天天气很好，我们去公园散步吧。", "1 "])
def test_a_long_text_is_read_in_time(text: str) -> None:
    begin = time.thread_time()
    read(text * (8_000 // len(text)), language="zh")
    assert time.thread_time() - begin < 4


def test_the_language_may_change_on_the_way() -> None:
    reader = TextReader("en")
    assert [word.spoken for word in reader.feed("Es kostet ")] == ["Es", " kostet"]
    reader.read_in("de")
    words = reader.feed("3,50 €, ja") + reader.finish()
    assert "".join(word.spoken for word in words) == " drei Euro fünfzig, ja"


def test_endless_text_without_space_is_cut() -> None:
    reader = TextReader("en")
    for char in ("a", " ", "5", "中"):
        words = reader.feed(char * 10 * MAX_WORD)
        assert sum(len(word.text) for word in words) > 7 * MAX_WORD
