"""Words by which a sentence, a number or a name is known to go on, by language.

The lists were chosen on one half of the texts of `benchmarks/turn_taking`, and its figures are
those of the other half.
"""

import re
from dataclasses import dataclass


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


@dataclass(frozen=True)
class Questions:
    """How the agent asks, in lower case."""

    number: tuple[str, ...]
    """Beginnings of words that ask for a number that is dictated."""
    letters: tuple[str, ...]
    email: tuple[str, ...]
    address: tuple[str, ...]
    lengths: tuple[tuple[tuple[str, ...], int], ...]
    """Words that ask for a number of a known length, and its digits."""
    count: tuple[str, ...]
    """Questions for a quantity, whose answer is one number."""
    whether: str
    """Pattern of questions that are answered by yes or no."""
    several: tuple[str, ...]
    """Patterns of questions for several things."""
    birth: str
    """Pattern of questions for a date of birth."""
    when: str
    """Pattern of questions for a day or a time."""
    digit: str
    """Beginning of the word for a digit."""
    numerals: tuple[str, ...]
    """From zero."""


@dataclass(frozen=True)
class Words:
    """The words of one language, in lower case and without punctuation."""

    dangling: frozenset[str]
    """Articles, prepositions, conjunctions and the like, which do not end a sentence."""
    auxiliary: frozenset[str]
    """Verbs that end a sentence only behind a pronoun, as in "yes, I can"."""
    main_verbs: frozenset[str]
    """Those of them that end a sentence behind another one, as in "what I can do"."""
    pronouns: frozenset[str]
    fillers: frozenset[str]
    """Said while thinking."""
    holding: tuple[str, ...]
    """Said before something is looked up."""
    correcting: tuple[str, ...]
    """Said before something is said again; nothing by themselves."""
    tails: tuple[str, ...]
    """Ends of sentences that go on, of words that may also end one."""
    prepositions: frozenset[str]
    """Those of `dangling` that end a question that begins with one of `asking`."""
    opening: tuple[str, ...]
    """All that is said of a sentence that has only begun."""
    digits: frozenset[str]
    """What a dictated number consists of."""
    tens: frozenset[str]
    """Numbers of two digits and more."""
    rounds: frozenset[str]
    """Numbers behind which smaller ones may follow."""
    joints: frozenset[str]
    """Said between the digits of a number."""
    at: frozenset[str]
    """The sign in an e-mail address."""
    dot: frozenset[str]
    between: str
    """Stands before the first of two ends."""
    since: frozenset[str]
    """An answer that begins with one of these names a beginning..."""
    until: frozenset[str]
    """...and one of these stands before the end."""
    subordinators: frozenset[str]
    """Words behind which a verb stands at the end of the sentence, if it does in this language."""
    complete: tuple[str, ...]
    """Ends of whole sentences, though their last word is one of `dangling`."""
    last_joint: str
    """Stands before the last of several things."""
    asking: frozenset[str]
    """Words behind which a question within the sentence follows."""
    unknown: tuple[str, ...]
    """What stands before such a word at the end of a whole sentence: "I don't know why"."""
    openers: frozenset[str]
    """Said before the sentence itself."""
    yes_no: frozenset[str]
    """Beginnings of short answers that are whole."""
    closing: tuple[str, ...]
    """Said at the end of all that one has to say."""
    hesitant: frozenset[str]
    """Beginnings of what is thought up while it is said."""
    conditional: frozenset[str]
    """Words that begin a clause which stands before the main one."""
    question: re.Pattern[str]
    """How a question begins."""
    day: re.Pattern[str]
    """How a date ends that lacks its month."""
    month: re.Pattern[str]
    times: re.Pattern[str]
    """Days and hours at the end of what is said."""
    phone_digits: int
    """A phone number of so many digits is complete; longer ones are followed by a pause as well."""
    questions: Questions


ENGLISH = Words(
    dangling=_set(
        "a an the my your his our their these those and or but so because if whether when while "
        "which whose who to of in on at for from with without about into onto between until till "
        "since than as by near like per via plus want need really very just i we they he she "
        "it's its i'm that's there's we're they're he's she's i'd i'll we'd we'll you'll what's "
        "it'll there'll they'll he'll she'll i've we've you've they've you're who's where's how's "
        "they'd you'd he'd she'd let's against among during except regarding concerning throughout "
        "toward towards upon within beyond beside versus despite unless although whereas every "
        "also mr mrs ms dr dot underscore"
    ),
    auxiliary=_set(
        "is are was were am be been would could can will should may might must do does did has "
        "have had"
    ),
    main_verbs=_set("do have"),
    pronouns=_set("i you he she it we they that this there"),
    fillers=_set("um umm uh uhm er erm hmm hm mm eh"),
    holding=_phrases(
        "let me look, let me see, let me check, let me think, let me count, let me find it, "
        "let me get it, let me turn it around, let me have a look, let me look it up, "
        "one moment, just a moment, a moment, one second, just a second, a second, a sec, "
        "hold on, hang on, wait, a minute, i have to check, i have to look, i need to check, "
        "i'll check, i'll look, have to check that, need to look that up, i'm looking, "
        "i'm looking at it, i'm checking, it here somewhere, i need my glasses, "
        "i'm getting my wallet, bear with me, here it is, there it is, i'm opening it"
    ),
    correcting=_phrases(
        "sorry, no wait, i mean, or no, actually, make that, or rather, or maybe, correction"
    ),
    tails=_phrases(
        "me that, him that, her that, us that, them that, think that, hope that, so that, is that, "
        "sure that, such that, told me that, it says, it shows, that says, which says, he said, "
        "she said, they said, is called, it's called, is named, number is, just before, "
        "just after, right before, right after, and then, but then, so then, and maybe, so maybe, "
        "or perhaps, said you, think you, thought you, hope you, heard you, if you, that you, "
        "whether you, because you, how you, where you, when you, tell me, ask you, as soon, "
        "as well as, in order"
    ),
    prepositions=_set("to of in on at for from with about by near like without into since until"),
    opening=_phrases(
        "can you, could you, would you, will you, can i, could i, may i, do you, did you, are you, "
        "have you, is it, is there, are there, we have, we had, i have, i had, there is, "
        "there are, it was, well, so, okay so"
    ),
    digits=_set("zero oh o one two three four five six seven eight nine double triple"),
    tens=_set(
        "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty "
        "thirty forty fifty sixty seventy eighty ninety hundred thousand"
    ),
    rounds=_set("hundred thousand million"),
    joints=_set("dash slash minus hyphen star pound hash"),
    at=_set("at"),
    dot=_set("dot"),
    between="between",
    since=_set("from"),
    until=_set("to until till through on onwards now"),
    subordinators=frozenset(),
    complete=_phrases(
        "of may, in may, by may, until may, this may, next may, last may, "
        "if you want to, if i have to, don't want to, come in, came in, get in, got in, sign in, "
        "let me in, put it on, try it on, switch it on, is on, was on, go on, hop on, paid for, "
        "pay for, ask for, asked for, looked for, think about, talk about, talked about, "
        "heard of, deal with, start with, come from, comes from, came from, "
        "think so, hope so, guess so, believe so, say so, told me so, or so, turn it on, it on, "
        "log in, come in, check in, moved in, go on, come on, what for, i know that, like that, "
        "about that, of that, say that, do that, want that, not really, said that, who to, "
        "looking for, asking for, waiting for, calling from, worried about, asking about, "
        "thank you so"
    ),
    last_joint="and",
    openers=_set("yes yeah yep no nope okay ok well so and but also hi hello hey sorry right sure"),
    yes_no=_set("yes yeah yep yup no nope nah sure okay ok right correct thanks thank fine"),
    closing=_phrases("please, thanks, thank you, that's all, that is all, that's it, that was all"),
    hesitant=_set("well so maybe perhaps"),
    conditional=_set("if when whenever while once unless although though"),
    question=re.compile(
        r"(?:what|which|who|whose|how|why|when|where)(?:'s|'re| (?!(?:i|you|he|she|it|we|they|"
        r"the|my|that|this|there)\b)\w+)|"
        r"(?:is|are|was|were|do|does|did|can|could|will|would|should|may|shall|isn't|aren't|don't|"
        r"doesn't|didn't|can't|couldn't|won't|wouldn't) (?!know\b|not\b)\w+"
    ),
    day=re.compile(r"\b(?:first|second|third|\w+(?:ie|f|l|n|r|s|x|h|if|wel)th)$"),
    month=re.compile(
        r"\b(?:january|february|march|april|may|june|july|august|september|october|november|"
        r"december|month)\b"
    ),
    times=re.compile(
        r"\b(?:(?:mon|tues|wednes|thurs|fri|satur|sun)days?|today|tomorrow|week|weekend|"
        r"(?:at|around|after|before|past) (?:one|two|three|four|five|six|seven|eight|nine|ten|"
        r"eleven|twelve|noon))$"
    ),
    phone_digits=10,
    asking=_set("how why where what when who which than"),
    unknown=_phrases("don't know, do not know, no idea, not sure, not know"),
    questions=Questions(
        number=(
            *("number", "phone", "mobile", "telephone", "code", "pin", "account", "serial", "zip"),
            *("digits", "meter", "invoice", "policy", "iban", "reference", "expiry", "reach you"),
        ),
        letters=("spell", "letters", "write it"),
        email=("e-mail", "email", "send the receipt", "write to you"),
        address=("address", "street", "where should we send", "where do you live", "where can we"),
        lengths=(
            (("zip",), 5),
            (("expiry", "expire", "pin"), 4),
            (("phone", "mobile", "reach", "call", "number for you"), 10),
        ),
        count=_phrases("how many, how much, how long, how old"),
        whether=r"^(?:is|are|was|were|does|do|did|have|has) |\b(?:correct|right)\?",
        several=(
            r"\bwhich \w+[^s\W]s\b",
            r"\bwhat (?:\w+ )?(?:symptoms|items|things|colors|days)\b",
            r"\bwhat would you like to order|\bwho is coming\b|\bput on the list\b",
        ),
        birth=r"\bbirth|\bborn\b",
        when=r"\bwhen\b|\bwhat (?:day|date|time)\b|\bwhich (?:day|date)\b",
        digit="digit",
        numerals=("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    ),
)
GERMAN = Words(
    dangling=_set(
        "der die den dem des ein eine einen einem einer mein meine meinen meinem ihre unser "
        "unsere und oder aber denn weil wenn ob dass als während damit sondern zum zur von vom "
        "in im ins am ans für ohne zwischen bis seit gegen durch wegen gern ich wir er "
        "sehr nur punkt minus unterstrich heißt lautet nummer hausnummer "
        "eines kein jeder jede jedes jeden jedem sein seine seinen seinem seiner ihrer ihren ihrem "
        "unserer unserem unseren meiner meines dein deine deinen deinem beim trotz innerhalb "
        "außerhalb laut pro statt anstatt außer hinter neben um bei nach über unter obwohl falls "
        "sobald solange bevor nachdem indem sodass sowie entweder weder sowohl etwa circa "
        "ungefähr mindestens höchstens man herr frau"
    ),
    auxiliary=_set(
        "möchte möchten will wollte brauche habe haben hätte bin sind war wäre ist kann könnte "
        "muss soll würde"
    ),
    main_verbs=frozenset(),
    pronouns=frozenset(),
    fillers=_set("äh ähm hm hmm ehm öh"),
    holding=_phrases(
        "moment, einen moment, augenblick, einen augenblick, sekunde, warten sie, "
        "warten sie kurz, ich schaue nach, ich sehe nach, ich schau mal, mal sehen, "
        "lassen sie mich nachsehen, ich muss nachsehen, ich suche sie, ich habe sie gleich, "
        "ich brauche meine brille, hier ist sie"
    ),
    tails=(),
    prepositions=frozenset(),
    correcting=_phrases(
        "entschuldigung, nein entschuldigung, oder nein, nein warten sie, "
        "ich meine, beziehungsweise, besser gesagt"
    ),
    opening=_phrases(
        "können sie, könnten sie, haben sie, gibt es, da steht, wir haben, also, "
        "ich möchte gerne, ich würde gerne, ich hätte gerne"
    ),
    digits=_set("null eins ein zwei zwo drei vier fünf sechs sieben acht neun doppel"),
    tens=_set(
        "zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn zwanzig "
        "dreißig vierzig fünfzig sechzig siebzig achtzig neunzig hundert tausend"
    ),
    rounds=_set("hundert tausend einhundert zweihundert eintausend zweitausend million millionen"),
    joints=_set("strich bindestrich schrägstrich minus"),
    at=_set("at ät klammeraffe"),
    dot=_set("punkt"),
    between="zwischen",
    since=_set("von"),
    until=_set("bis ab an"),
    subordinators=_set("ob dass weil wenn als wie was warum wo damit während wer wann"),
    complete=_phrases("ja aber, oder, was denn, das war es, mehr als das, ich auch noch"),
    last_joint="und",
    openers=_set("ja nein doch okay gut also und aber hallo guten tag entschuldigung genau"),
    yes_no=_set("ja nein doch nee okay genau richtig gerne gern danke gut stimmt"),
    closing=_phrases("bitte, danke, vielen dank, das ist alles, das war alles"),
    hesitant=_set("also vielleicht"),
    conditional=_set("wenn falls sobald solange nachdem bevor obwohl"),
    question=re.compile(
        r"(?:was|wann|wo|wer|wen|wem|wie|warum|wieso|woher|wohin|womit|wofür|welche\w*|wieviel)\b|"
        r"(?:in|mit|an|um|für|zu|bis|ab|seit) (?:wem|wen|welche\w*|wann|wie)\b|"
        r"(?:können|könnten|kann|könnte|haben|hat|gibt|ist|sind|war|waren|darf|dürfte|muss|müssen|"
        r"soll|sollte|wird|werden|würden|machen|bieten|liefern|nehmen|brauche|geht|kostet) "
        r"(?:ich|sie|es|er|man|wir|das|die|der|den|ein\w*|mein\w*|ihr\w*|dort|hier|noch|auch|da)\b"
    ),
    day=re.compile(r"\b(?:am|dem|der|den|zum|vom) \w{2,}ten$"),
    month=re.compile(
        r"\b(?:januar|jänner|februar|märz|april|mai|juni|juli|august|september|oktober|november|"
        r"dezember|monats?)\b"
    ),
    times=re.compile(
        r"\b(?:(?:mon|diens|donners|frei|sams|sonn)tags?|mittwochs?|sonnabend|heute|morgen|"
        r"übermorgen|woche|wochenende|\w{2,}ten|(?:um|gegen|ab|nach|vor|halb) (?:eins|zwei|drei|"
        r"vier|fünf|sechs|sieben|acht|neun|zehn|elf|zwölf))$"
    ),
    phone_digits=10,
    asking=_set("wie warum wo was"),
    unknown=("weiß nicht", "weiß ich nicht", "keine ahnung"),
    questions=Questions(
        number=(
            *("nummer", "telefon", "handy", "code", "pin", "zähler", "postleitzahl", "iban"),
            *("kundennummer", "bestellnummer", "rechnungsnummer", "buchungsnummer"),
        ),
        letters=("buchstabier", "schreibt man"),
        email=("e-mail", "email", "mail", "rechnung schicken"),
        address=("adresse", "anschrift", "wohin sollen", "wo wohnen", "straße"),
        lengths=((("postleitzahl",), 5), (("pin",), 4), (("telefon", "handy", "erreichen"), 11)),
        count=_phrases("wie viele, wie viel, wie lange, wie alt"),
        whether=r"^(?:ist|sind|stimmt|war|haben) |\brichtig\?",
        several=(
            r"\bwelche \w+n\b",
            r"\bwas möchten sie bestellen\b|\bwer kommt mit\b",
        ),
        birth=r"\bgeboren\b|\bgeburt",
        when=r"\bwann\b|\bum wie viel uhr\b|\bwelche[rnsm]? (?:tag|datum)\b|\bder wievielte\b",
        digit="ziffer",
        numerals=(
            "null",
            "eine",
            "zwei",
            "drei",
            "vier",
            "fünf",
            "sechs",
            "sieben",
            "acht",
            "neun",
        ),
    ),
)
SPANISH = Words(
    dangling=_set(
        "el la los las lo un una unos unas mi mis su sus nuestro nuestra y e o u pero porque si "
        "cuando mientras que quien a al de del en con sin por para sobre entre hasta desde como "
        "según quiero quisiera necesito gustaría es son era está estoy tengo hay muy más también "
        "además punto guion arroba número calle llamo prefiero pues "
        "me te se nos le les tu tus nuestros nuestras cada algún ningún cualquier gran buen "
        "primer tercer ni sino aunque donde ante bajo contra durante hacia mediante excepto salvo "
        "tras tan casi fue sería quería querría debo deseo soy he ha han hemos había habían señor "
        "señora"
    ),
    auxiliary=frozenset(),
    main_verbs=frozenset(),
    pronouns=frozenset(),
    fillers=_set("eh em este mmm hm"),
    holding=_phrases(
        "un momento, un segundo, espere, un minuto, voy a mirar, déjeme ver, déjeme mirar, "
        "a ver, voy a ver, lo estoy buscando, necesito mis gafas, aquí está"
    ),
    tails=(),
    prepositions=frozenset(),
    correcting=_phrases("perdón, no perdón, o no, digo, mejor dicho, quiero decir"),
    opening=_phrases("puede, podría, tiene, hay, tenemos, pues"),
    digits=_set("cero uno dos tres cuatro cinco seis siete ocho nueve doble"),
    tens=_set(
        "diez once doce trece catorce quince dieciséis diecisiete dieciocho diecinueve veinte "
        "treinta cuarenta cincuenta sesenta setenta ochenta noventa cien ciento mil"
    ),
    rounds=_set("cien ciento mil doscientos millón"),
    joints=_set("guion barra"),
    at=_set("arroba"),
    dot=_set("punto"),
    between="entre",
    since=_set("desde del"),
    until=_set("hasta al a"),
    subordinators=frozenset(),
    complete=_phrases(
        "nada más, algo más, qué más, uno más, una más, así es, no es, sí está, ya está, "
        "yo también, no hay, eso es, no más, a mí sí"
    ),
    last_joint="y",
    openers=_set("sí no vale bueno pues y pero hola claro perdón ah oiga buenas buenos días"),
    yes_no=_set("sí no vale claro gracias correcto exacto bueno perfecto bien"),
    closing=_phrases("por favor, gracias, eso es todo, nada más"),
    hesitant=_set("pues bueno quizás quizá"),
    conditional=_set("si cuando mientras aunque"),
    question=re.compile(
        r"(?:(?:a|con|de|desde|en|hasta|para|por) )?"
        r"(?:qué|cuándo|dónde|adónde|quién(?:es)?|cómo|cuánt[oa]s?|cuál(?:es)?)\b|"
        r"(?:puede|pueden|puedo|podría|podrían|podemos|tienen|hacen|aceptan|abren|cierran|sabe) \w+"
    ),
    day=re.compile(
        r"\b(?:el|del) (?:día )?(?:uno|dos|tres|cuatro|cinco|seis|siete|ocho|nueve|diez|once|doce|"
        r"trece|catorce|quince|dieci\w+|veint\w+|treinta|treinta y uno)$"
    ),
    month=re.compile(
        r"\b(?:enero|febrero|marzo|abril|mayo|junio|julio|agosto|septiembre|octubre|noviembre|"
        r"diciembre|mes)\b"
    ),
    times=re.compile(
        r"\b(?:lunes|martes|miércoles|jueves|viernes|sábado|domingo|hoy|mañana|semana|"
        r"las? (?:una|dos|tres|cuatro|cinco|seis|siete|ocho|nueve|diez|once|doce))$"
    ),
    phone_digits=9,
    asking=_set("cómo qué dónde"),
    unknown=("no sé",),
    questions=Questions(
        number=("número", "teléfono", "móvil", "código", "pin", "contador", "postal", "iban"),
        letters=("deletre", "escribe"),
        email=("correo", "e-mail", "email", "envío el recibo"),
        address=("dirección", "adónde", "dónde vive", "calle"),
        lengths=((("postal",), 5), (("pin",), 4), (("teléfono", "móvil", "llamar"), 9)),
        count=_phrases("cuántos, cuántas, cuánto, cuánta"),
        whether=r"^¿?(?:es|está|son|tiene|hay)\b|\bcorrect",
        several=(r"\bqué (?:desea|quiere) pedir\b",),
        birth=r"\bnacimiento\b|\bnació\b",
        when=r"\bcuándo\b|\ba qué hora\b|\bqué (?:día|fecha)\b",
        digit="cifra",
        numerals=(
            "cero",
            "una",
            "dos",
            "tres",
            "cuatro",
            "cinco",
            "seis",
            "siete",
            "ocho",
            "nueve",
        ),
    ),
)
FRENCH = Words(
    dangling=_set(
        "le la les l un une des du de d mon ma mes votre vos notre nos son sa ses et ou mais "
        "parce que qu si quand lorsque car donc alors qui dont à au aux en dans sur sous avec "
        "sans pour par entre jusqu depuis chez vers comme voudrais veux aimerais ai est suis "
        "était c'est j'ai je nous il elle on très plus aussi point tiret arobase numéro rue "
        "avenue préfère ce cet cette ces chaque quel quelle quels quelles leur leurs ton ta tes "
        "plusieurs quelques aucun aucune contre pendant durant hors malgré selon jusque jusqu'à "
        "jusqu'au envers parmi dès sauf ni puisque afin tandis ne n me m te t se s j c tu ils "
        "elles sont ont as avons êtes serait sera étaient aurait souhaite souhaiterais dois "
        "monsieur madame"
    ),
    auxiliary=frozenset(),
    main_verbs=frozenset(),
    pronouns=frozenset(),
    fillers=_set("euh heu hum hm ben"),
    holding=_phrases(
        "un instant, un moment, une seconde, une minute, attendez, je regarde, je vérifie, "
        "voyons, laissez-moi voir, laissez-moi regarder, je cherche, il me faut mes lunettes, "
        "le voilà"
    ),
    tails=(),
    prepositions=frozenset(),
    correcting=_phrases("pardon, non pardon, ou non, je veux dire, enfin, plutôt"),
    opening=_phrases("pouvez-vous, pourriez-vous, avez-vous, est-ce que, nous avons, alors"),
    digits=_set("zéro un deux trois quatre cinq six sept huit neuf double"),
    tens=_set(
        "dix onze douze treize quatorze quinze seize vingt trente quarante cinquante soixante "
        "cent mille dix-sept dix-huit dix-neuf quarante-cinq trente-trois quatre-vingt"
    ),
    rounds=_set("cent cents mille million"),
    joints=_set("tiret slash"),
    at=_set("arobase"),
    dot=_set("point"),
    between="entre",
    since=_set("du de"),
    until=_set("au à jusqu jusqu'au jusqu'à"),
    subordinators=frozenset(),
    complete=_phrases("moi aussi, lui aussi, je suis, pas très, c'est tout, non plus, et vous"),
    last_joint="et",
    openers=_set("oui non d'accord bon alors et mais bonjour bonsoir pardon ah voilà euh merci"),
    yes_no=_set("oui non si d'accord merci bien voilà exact exactement parfait volontiers"),
    closing=_phrases("s'il vous plaît, s'il te plaît, merci, merci beaucoup, c'est tout"),
    hesitant=_set("alors ben bon peut-être"),
    conditional=_set("si quand lorsque comme"),
    question=re.compile(
        r"(?:(?:à|avec|d'|de|depuis|en|pour|jusqu'à) )?"
        r"(?:quel\w*|quand|où|comment|pourquoi|combien|qui)\b|que|qu'est-ce|est-ce|"
        r"(?:\w+ )?[\w']+-(?:t-)?(?:ils?|elles?|on|vous|je|nous|tu|ce)\b"
    ),
    day=re.compile(
        r"\b(?:le|du) (?:premier|deux|trois|quatre|cinq|six|sept|huit|neuf|dix(?:-\w+)?|onze|douze|"
        r"treize|quatorze|quinze|seize|vingt(?:-\w+| et un)?|trente(?: et un)?)$"
    ),
    month=re.compile(
        r"\b(?:janvier|février|mars|avril|mai|juin|juillet|août|septembre|octobre|novembre|"
        r"décembre|mois)\b"
    ),
    times=re.compile(
        r"\b(?:lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|aujourd'hui|demain|semaine|"
        r"week-end|heures?|midi)$"
    ),
    phone_digits=10,
    asking=_set("comment pourquoi où"),
    unknown=("sais pas",),
    questions=Questions(
        number=("numéro", "téléphone", "portable", "code", "pin", "compteur", "postal", "iban"),
        letters=("épel", "écrit"),
        email=("mail", "e-mail", "courriel", "envoyer le reçu"),
        address=("adresse", "livrer", "où habitez", "rue"),
        lengths=((("postal",), 5), (("pin",), 4), (("téléphone", "portable", "joindre"), 10)),
        count=_phrases("combien"),
        whether=r"est-elle|est-il|^c'est|\bcorrect",
        several=(r"\bque désirez-vous\b",),
        birth=r"\bnaissance\b|\bnée?\b",
        when=r"\bquand\b|\bà quelle heure\b|\bquel(?:le)? (?:jour|date)\b",
        digit="chiffre",
        numerals=("zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf"),
    ),
)
LANGUAGES = {"en": ENGLISH, "de": GERMAN, "es": SPANISH, "fr": FRENCH}
