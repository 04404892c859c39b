"""Words by which a sentence, a number or a name is known to go on, by language.

The lists were chosen on one half of the texts of `benchmarks/turn_taking` and on what failed in
those of en2, de2, es2 and fr2; its figures say which half or set they are of.
"""

import re
from dataclasses import dataclass


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


def _ending(said: str, then: str = "") -> re.Pattern[str]:
    """Matches what ends with `said`, and perhaps with one of the words of `then` behind it."""
    return re.compile(rf"(?:^| )(?:{said})" + (f"(?: (?:{then}))?$" if then else "$"))


@dataclass(frozen=True)
class Questions:
    """How the agent asks, in lower case."""

    number: tuple[str, ...]
    """Beginnings of words that ask for a number that is dictated."""
    letters: tuple[str, ...]
    email: tuple[str, ...]
    address: tuple[str, ...]
    name: tuple[str, ...]
    """Questions for a name, which is often spelled as well."""
    lengths: tuple[tuple[tuple[str, ...], int], ...]
    """Words that ask for a number of a known length, and its digits."""
    count: tuple[str, ...]
    """Questions for a quantity or a time, whose answer is one number."""
    whether: str
    """Pattern of questions that are answered by yes or no, and perhaps by a number as well."""
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
    holding: re.Pattern[str]
    """What is said before something is looked up."""
    announcing: tuple[str, ...]
    """Said before what is to be said or asked: "one more thing"."""
    as_in: re.Pattern[str]
    """How a letter is spelled at the end: "N as in November"."""
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
    tens: re.Pattern[str]
    """Matches the words of numbers of two digits and more."""
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
    year: re.Pattern[str]
    """How a date of birth ends that has its year."""
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
    holding=_ending(
        r"let me (?:just |quickly )?(?:(?:look|see|check|find|grab|pull|open|scroll|flip|turn|dig|"
        r"search|read|log|click|go|double-check|get (?:it|that|my|the))"
        r"(?: (?!(?:[b-z]|is|it's|says|looks|i'm|that's|zero|oh|one|two|three|four|five|six|seven|"
        r"eight|nine|\d+)\b)[\w']+){0,5}|think|count(?: them)?|have a look)|"
        r"(?:one|a|half a) (?:quick )?(?:moment|second|sec|minute)|(?:hold|hang) on|wait|"
        r"i(?: have| need|'ve got)? ?(?:to|'ll) (?:just )?(?:check|look)(?: (?:that|it|up))*|"
        r"i (?:have|need) to (?:find|get|grab) my \w+|i need my \w+|"
        r"i'm (?:just )?(?:looking(?: at it| for it| it up)?|checking|(?:getting|opening|finding|"
        r"pulling) (?:it|that|my)(?: \w+)?)|bear with me|(?:here|there) (?:it is|we go)|"
        r"it (?:right here|(?:[\w']+ ){0,3}somewhere)",
        then="okay|ok|so|alright|right|well",
    ),
    announcing=_phrases(
        "one thing, one more thing, one last thing, another thing, two things, one question, "
        "a question, one more question, another question, a quick question, quick question, "
        "a couple of things, a couple of questions, here's the thing, a problem"
    ),
    as_in=_ending(r"\w as in \w+"),
    correcting=_phrases(
        "sorry, no wait, wait no, i mean, or no, actually, make that, or rather, or maybe, "
        "correction"
    ),
    tails=_phrases(
        "me that, him that, her that, us that, them that, think that, hope that, so that, is that, "
        "sure that, such that, told me that, it says, it shows, that says, which says, he said, "
        "she said, they said, is called, it's called, is named, number is, just before, "
        "just after, right before, right after, and then, but then, so then, and maybe, so maybe, "
        "or perhaps, said you, think you, thought you, hope you, heard you, if you, that you, "
        "whether you, because you, how you, where you, when you, tell me, ask you, as soon, "
        "as well as, in order, quarter past, quarter to, half past, but not, and not, and now, "
        "and sometimes, or sometimes, and usually, and just, but just, but now, do you guys, "
        "can you guys, are you guys"
    ),
    prepositions=_set("to of in on at for from with about by near like without into since until"),
    opening=_phrases(
        "can you, could you, would you, will you, can i, could i, may i, do you, did you, are you, "
        "have you, is it, is there, are there, we have, we had, i have, i had, there is, "
        "there are, it was, well, so, okay so"
    ),
    digits=_set("zero oh o one two three four five six seven eight nine double triple"),
    tens=re.compile(
        r"ten|eleven|twelve|\w+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty(?:-\w+)?|hundred|"
        r"thousand"
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
    year=re.compile(
        r"\b(?:for|fif|six|seven|eigh|nine)ty(?:[ -]\w+)?$|\bthousand(?: and)? \w+(?:[ -]\w+)?$|"
        r"\btwenty (?:oh|ten|eleven|twelve|\w+teen)\b|\d\d$"
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
            *("digits", "meter", "invoice", "policy", "iban", "reference", "expir", "reach you"),
            *("call you", "license plate", "security", "card", "membership", "flight"),
        ),
        letters=("spell", "letters", "write it"),
        email=("e-mail", "email", "send the receipt", "write to you"),
        address=(
            *("address", "street", "where do you live", "where can we", "where should we send"),
            *("where should i send", "where should the"),
        ),
        name=(
            *("first name", "last name", "surname", "family name", "full name", "what name"),
            *("your name", "name on", "name under"),
        ),
        lengths=(
            (("zip",), 5),
            (("expir", "pin"), 4),
            (("social security",), 9),
            (("phone", "mobile", "reach", "call", "number for you"), 10),
        ),
        count=_phrases("how many, how much, how long, how old, when, what time"),
        whether=r"^(?:is|are|was|were|does|do|did|have|has) |\b(?:correct|right)\?",
        several=(
            r"\bwhich \w+[^s\W]s\b",
            r"\bwhat (?:\w+ )?(?:symptoms|items|things|colors|days|medications?|allergies)\b",
            r"\bwhat would you like to order|\bwho is coming\b|\bput on the list\b|"
            r"\bwhat can i get\b",
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
    pronouns=_set("ich wir er"),
    fillers=_set("äh ähm hm hmm ehm öh"),
    holding=_ending(
        r"(?:kleinen |kurzen )?(?:moment|augenblick)(?: bitte)?|sekunde(?: bitte)?|"
        r"warten sie(?: kurz| mal| bitte)*|mal sehen|hier ist (?:sie|er|es)|"
        r"ich (?:schaue?|gucke?|sehe) (?:\w+ ){0,2}(?:nach|mal)|ich geh?e? (?:mal|kurz) \w+|"
        r"(?:ich muss|lassen sie mich) (?:\w+ ){0,4}(?:nachsehen|nachschauen|schauen|sehen|holen|"
        r"suchen|überlegen)|ich (?:suche?|hole?) (?:sie|ihn|es|das|mal|kurz)(?: \w+)?|"
        r"ich habe? (?:sie|ihn|es) gleich|ich brauche (?:erst |kurz )?meine brille",
        then="so|also|okay|ja|gut",
    ),
    announcing=_phrases("eine frage, noch was, noch etwas, zwei dinge, ein problem, folgendes"),
    as_in=_ending(r"\w wie \w+"),
    tails=_phrases(
        "aber nicht, und zwar, und dann, aber dann, viertel nach, viertel vor, kurz nach, "
        "kurz vor, kam plötzlich"
    ),
    prepositions=frozenset(),
    correcting=_phrases(
        "entschuldigung, nein entschuldigung, oder nein, ach nein, nein warten sie, "
        "ich meine, beziehungsweise, besser gesagt"
    ),
    opening=_phrases(
        "können sie, könnten sie, haben sie, gibt es, da steht, wir haben, also, "
        "ich möchte gerne, ich würde gerne, ich hätte gerne"
    ),
    digits=_set("null eins ein zwei zwo drei vier fünf sechs sieben acht neun doppel"),
    tens=re.compile(
        r"elf|zwölf|\w*zehn|\w*(?:zwan|vier|fünf|sech|sieb|acht|neun)zig|\w*dreißig|"
        r"\w*(?:hundert|tausend)(?:\w*(?:zig|zehn|elf|zwölf|eins|zwei|drei|vier|fünf|sechs|sieben|"
        r"acht|neun))?"
    ),
    rounds=_set("hundert tausend einhundert zweihundert eintausend zweitausend million millionen"),
    joints=_set("strich bindestrich schrägstrich minus"),
    at=_set("at ät klammeraffe"),
    dot=_set("punkt"),
    between="zwischen",
    since=_set("von"),
    until=_set("bis ab an"),
    subordinators=_set("ob dass weil wenn als wie was warum wo damit während wer wann"),
    complete=_phrases(
        "ja aber, oder, was denn, das denn, es denn, ist denn, sie denn, das war es, mehr als das, "
        "ich auch noch, ja bin ich, bin ich auch, ja habe ich, ja kann ich, ja möchte ich, "
        "weiß ich, glaube ich, denke ich, hoffe ich"
    ),
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
    year=re.compile(r"(?:vier|fünf|sech|sieb|acht|neun)zig$|tausend\w+$|\d\d$"),
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
            *("karte", "zurückrufen", "anrufen"),
            *("kundennummer", "bestellnummer", "rechnungsnummer", "buchungsnummer"),
        ),
        letters=("buchstabier", "schreibt man"),
        email=("e-mail", "email", "mail", "rechnung schicken"),
        address=("adresse", "anschrift", "wohin soll", "wo wohnen", "straße", "hinkommen"),
        name=("name", "wie heißen"),
        lengths=(
            (("postleitzahl",), 5),
            (("pin",), 4),
            (("telefon", "handy", "erreichen", "rufen"), 11),
        ),
        count=_phrases("wie viele, wie viel, wie lange, wie alt, wann"),
        whether=r"^(?:ist|sind|stimmt|war|haben) |\brichtig\?",
        several=(
            r"\bwelche \w+n\b",
            r"\bwas möchten sie bestellen\b|\bwer kommt mit\b|\bwas darf es sein\b",
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
    pronouns=_set("me te se nos les"),
    fillers=_set("eh em este mmm hm"),
    holding=_ending(
        r"una? (?:momento|momentito|segundo|segundito|minuto|minutito)(?: por favor)?|"
        r"esper[ae](?:me)?(?: que l[oa] \w+)?|que l[oa] (?:busco|miro)|"
        r"(?:voy a|déjeme) (?:mirar|ver|buscar)(?:l[oa])?|a ver|l[oa] estoy (?:buscando|mirando)|"
        r"necesito mis gafas|aquí (?:está|l[oa] tengo)",
        then="vale|bueno|pues",
    ),
    announcing=_phrases("una pregunta, otra pregunta, una cosa, otra cosa, dos cosas, un problema"),
    as_in=_ending(r"[b-df-hj-np-tv-xz] de \w+"),
    tails=_phrases("pero no, y luego, y entonces, de repente, por ejemplo"),
    prepositions=frozenset(),
    correcting=_phrases("perdón, no perdón, o no, ay no, digo, mejor dicho, quiero decir"),
    opening=_phrases("puede, podría, tiene, hay, tenemos, pues"),
    digits=_set("cero uno dos tres cuatro cinco seis siete ocho nueve doble"),
    tens=re.compile(
        r"diez|once|doce|trece|catorce|quince|dieci\w+|veint\w+|"
        r"(?:trei|cuare|cincue|sese|sete|oche|nove)nta|cien|ciento|\w+cientos|quinientos|mil"
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
        "yo también, no hay, eso es, no más, a mí sí, aquí estoy, no estoy, sí estoy, ya estoy, "
        "lo tengo, la tengo, no tengo, lo quiero, lo necesito, no quiero"
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
    year=re.compile(
        r"\b(?:cuare|cincue|sese|sete|oche|nove)nta(?: y \w+)?$|\bmil (?!novecientos$)\w+$|\d\d$"
    ),
    times=re.compile(
        r"\b(?:lunes|martes|miércoles|jueves|viernes|sábado|domingo|hoy|mañana|semana|"
        r"las? (?:una|dos|tres|cuatro|cinco|seis|siete|ocho|nueve|diez|once|doce))$"
    ),
    phone_digits=9,
    asking=_set("cómo qué dónde"),
    unknown=("no sé",),
    questions=Questions(
        number=(
            *("número", "teléfono", "móvil", "código", "pin", "contador", "postal", "iban"),
            *("dni", "tarjeta", "referencia"),
        ),
        letters=("deletre", "escribe"),
        email=("correo", "e-mail", "email", "envío el recibo"),
        address=("dirección", "adónde", "dónde vive", "calle"),
        name=("apellido", "su nombre", "se llama"),
        lengths=((("postal",), 5), (("pin",), 4), (("teléfono", "móvil", "llamar"), 9)),
        count=_phrases("cuántos, cuántas, cuánto, cuánta, cuándo, a qué hora"),
        whether=r"^¿?(?:es|está|son|tiene|hay)\b|\bcorrect",
        several=(r"\bqué (?:(?:desea|quiere) pedir|le pongo)\b",),
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
    pronouns=_set("je nous il elle on tu ils elles c'est j'ai c j"),
    fillers=_set("euh heu hum hm ben"),
    holding=_ending(
        r"une? (?:petite? )?(?:instant|moment|seconde|minute)(?: s'il vous plaît)?|attendez|"
        r"je (?:vais )?(?:regarder?|vérifier?|chercher?|voir)|je l[ea] (?:cherche|retrouve)|"
        r"voyons(?: voir)?|laissez-moi (?:voir|regarder|chercher)|il me faut mes lunettes|"
        r"l[ea] voilà",
        then="alors|bon|voilà",
    ),
    announcing=_phrases(
        "une question, une autre question, une chose, autre chose, deux choses, un problème, "
        "un souci"
    ),
    as_in=_ending(r"\w comme \w+"),
    tails=_phrases("mais pas, et puis, et après, tout d'un coup, tout à coup, par exemple"),
    prepositions=frozenset(),
    correcting=_phrases("pardon, non pardon, ou non, ah non, je veux dire, enfin, plutôt"),
    opening=_phrases("pouvez-vous, pourriez-vous, avez-vous, est-ce que, nous avons, alors"),
    digits=_set("zéro un deux trois quatre cinq six sept huit neuf double"),
    tens=re.compile(
        r"dix(?:-\w+)?|onze|douze|treize|quatorze|quinze|seize|cents?|mille|"
        r"(?:vingt|trente|quarante|cinquante|soixante|quatre-vingts?)(?:-[\w-]+)?"
    ),
    rounds=_set("cent cents mille million"),
    joints=_set("tiret slash"),
    at=_set("arobase"),
    dot=_set("point"),
    between="entre",
    since=_set("du de"),
    until=_set("au à jusqu jusqu'au jusqu'à"),
    subordinators=frozenset(),
    complete=_phrases(
        "moi aussi, lui aussi, je suis, pas très, c'est tout, non plus, et vous, marche plus, "
        "fonctionne plus, veux plus, peux plus, sais plus, ai plus, a plus, en plus"
    ),
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
    year=re.compile(
        r"\b(?:quarante|cinquante|soixante|quatre-vingt)(?:-[\w-]+| et \w+)?$|"
        r"\bdeux mille [\w-]+$|\d\d$"
    ),
    times=re.compile(
        r"\b(?:lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|aujourd'hui|demain|semaine|"
        r"week-end|heures?|midi)$"
    ),
    phone_digits=10,
    asking=_set("comment pourquoi où"),
    unknown=("sais pas",),
    questions=Questions(
        number=(
            *("numéro", "téléphone", "portable", "code", "pin", "compteur", "postal", "iban"),
            *("carte", "référence"),
        ),
        letters=("épel", "écrit"),
        email=("mail", "e-mail", "courriel", "envoyer le reçu"),
        address=("adresse", "livrer", "où habitez", "rue"),
        name=("votre nom", "nom de famille", "prénom", "vous appelez"),
        lengths=(
            (("postal",), 5),
            (("pin",), 4),
            (("téléphone", "portable", "joindre", "rappeler"), 10),
        ),
        count=_phrases("combien, quand, à quelle heure"),
        whether=r"est-elle|est-il|^c'est|\bcorrect",
        several=(r"\bque (?:désirez-vous|vous sers)\b|\bque je vous sers\b",),
        birth=r"\bnaissance\b|\bnée?\b",
        when=r"\bquand\b|\bà quelle heure\b|\bquel(?:le)? (?:jour|date)\b",
        digit="chiffre",
        numerals=("zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf"),
    ),
)
ALPHABET = _set(
    "alpha alfa bravo charlie delta echo foxtrot golf hotel india juliet juliett kilo lima mike "
    "november oscar papa quebec romeo sierra tango uniform victor whiskey x-ray xray yankee zulu"
)
"""Words that stand for letters in all languages."""
LANGUAGES = {"en": ENGLISH, "de": GERMAN, "es": SPANISH, "fr": FRENCH}
