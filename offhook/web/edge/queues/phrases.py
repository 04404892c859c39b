"""What callers hear who wait in a queue: a table of language x phrase."""

from collections.abc import Mapping
from enum import Enum, auto

from offhook.pipeline.conversation.sentences import in_language


class Phrase(Enum):
    NEXT = auto()
    """The caller is the first."""
    POSITION = auto()
    SOON = auto()
    """It takes less than a minute and a half."""
    MINUTES = auto()
    OFFER = auto()
    """By which key the caller is called back."""
    NOTED = auto()
    """The caller is going to be called back."""
    CALLED_BACK = auto()


P = Phrase
PHRASES: Mapping[str, Mapping[Phrase, str]] = {
    "en": {
        P.NEXT: "You are next.",
        P.POSITION: "You are number {position} in the queue.",
        P.SOON: "It takes about one minute.",
        P.MINUTES: "It takes about {minutes} minutes.",
        P.OFFER: "If we shall call you back instead, press {key}.",
        P.NOTED: "We will call you back when it is your turn. Goodbye.",
        P.CALLED_BACK: "Hello, you have asked us to call you back. I am connecting you now.",
    },
    "de": {
        P.NEXT: "Sie sind als Nächstes an der Reihe.",
        P.POSITION: "Sie sind an Stelle {position} der Warteschlange.",
        P.SOON: "Es dauert etwa eine Minute.",
        P.MINUTES: "Es dauert etwa {minutes} Minuten.",
        P.OFFER: "Wenn wir Sie stattdessen zurückrufen sollen, drücken Sie die {key}.",
        P.NOTED: "Wir rufen Sie zurück, sobald Sie an der Reihe sind. Auf Wiederhören.",
        P.CALLED_BACK: "Guten Tag, Sie haben um unseren Rückruf gebeten. Ich verbinde Sie jetzt.",
    },
    "fr": {
        P.NEXT: "Vous êtes le prochain.",
        P.POSITION: "Vous êtes en position {position} dans la file d'attente.",
        P.SOON: "L'attente est d'environ une minute.",
        P.MINUTES: "L'attente est d'environ {minutes} minutes.",
        P.OFFER: "Pour être rappelé, appuyez sur {key}.",
        P.NOTED: "Nous vous rappellerons quand ce sera votre tour. Au revoir.",
        P.CALLED_BACK: "Bonjour, vous avez demandé à être rappelé. Je vous mets en relation.",
    },
    "es": {
        P.NEXT: "Usted es el siguiente.",
        P.POSITION: "Usted ocupa el puesto {position} de la cola.",
        P.SOON: "La espera es de un minuto aproximadamente.",
        P.MINUTES: "La espera es de unos {minutes} minutos.",
        P.OFFER: "Si prefiere que le llamemos, pulse {key}.",
        P.NOTED: "Le llamaremos cuando sea su turno. Adiós.",
        P.CALLED_BACK: "Hola, nos ha pedido que le llamemos. Le paso ahora mismo.",
    },
    "it": {
        P.NEXT: "Lei è il prossimo.",
        P.POSITION: "Lei è al numero {position} della coda.",
        P.SOON: "L'attesa è di circa un minuto.",
        P.MINUTES: "L'attesa è di circa {minutes} minuti.",
        P.OFFER: "Se preferisce essere richiamato, prema {key}.",
        P.NOTED: "La richiameremo quando sarà il suo turno. Arrivederci.",
        P.CALLED_BACK: "Buongiorno, ci ha chiesto di richiamarla. La metto in contatto adesso.",
    },
    "pt": {
        P.NEXT: "É o próximo.",
        P.POSITION: "Está na posição {position} da fila.",
        P.SOON: "A espera é de cerca de um minuto.",
        P.MINUTES: "A espera é de cerca de {minutes} minutos.",
        P.OFFER: "Se prefere que lhe liguemos, prima {key}.",
        P.NOTED: "Vamos ligar-lhe quando for a sua vez. Adeus.",
        P.CALLED_BACK: "Olá, pediu que lhe ligássemos. Vou passar a ligação agora.",
    },
    "nl": {
        P.NEXT: "U bent de volgende.",
        P.POSITION: "U bent nummer {position} in de wachtrij.",
        P.SOON: "Het duurt ongeveer een minuut.",
        P.MINUTES: "Het duurt ongeveer {minutes} minuten.",
        P.OFFER: "Als we u liever terugbellen, druk dan op {key}.",
        P.NOTED: "We bellen u terug zodra u aan de beurt bent. Tot ziens.",
        P.CALLED_BACK: "Hallo, u hebt gevraagd om teruggebeld te worden. Ik verbind u nu door.",
    },
    "ja": {
        P.NEXT: "次にご案内いたします。",
        P.POSITION: "お待ちの順番は{position}番目です。",
        P.SOON: "お待ち時間は約1分です。",
        P.MINUTES: "お待ち時間は約{minutes}分です。",
        P.OFFER: "折り返しをご希望の場合は{key}を押してください。",
        P.NOTED: "順番になりましたら折り返しお電話いたします。失礼いたします。",
        P.CALLED_BACK: "折り返しのご希望によりお電話いたしました。ただいまおつなぎします。",
    },
    "zh": {
        P.NEXT: "您是下一位。",
        P.POSITION: "您排在第{position}位。",
        P.SOON: "大约需要等待一分钟。",
        P.MINUTES: "大约需要等待{minutes}分钟。",
        P.OFFER: "如需我们回电,请按{key}。",
        P.NOTED: "轮到您时我们会给您回电。再见。",
        P.CALLED_BACK: "您好,您要求我们回电。现在为您接通。",
    },
}
"""By ISO 639 code; every language has every phrase."""


def phrase(which: Phrase, language: str) -> str:
    """Returns the phrase in a language such as "de" or "de-AT", in English for other languages."""
    return in_language(PHRASES, language)[which]


def announcement(position: int, wait_s: float | None, key: str, language: str) -> str:
    """Returns what a caller hears of the place and the time that it takes, None being unknown;
    `key` is that of the callback, "" for none."""
    words = [phrase(P.NEXT if position == 1 else P.POSITION, language)]
    if wait_s is not None:
        words.append(phrase(P.SOON if wait_s < 90 else P.MINUTES, language))
    if key:
        words.append(phrase(P.OFFER, language))
    minutes = round((wait_s or 0) / 60)
    return " ".join(words).format(position=position, minutes=minutes, key=key)
