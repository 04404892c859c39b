"""What a person is told who is called for a caller: a table of language x phrase."""

from collections.abc import Mapping
from enum import Enum, auto

from offhook.pipeline.conversation.sentences import in_language


class Phrase(Enum):
    CALLS = auto()
    """Who calls, where no model has said it."""
    SOMEBODY = auto()
    """A caller whose number and name are unknown."""
    OFFER = auto()
    """How the person accepts or declines."""
    DECLINED = auto()
    UNDECIDED = auto()
    CALLER_GONE = auto()
    OTHER_CHOSEN = auto()
    CONNECTING = auto()
    """Is said to the caller by an agent that has kept the caller company."""


P = Phrase
PHRASES: Mapping[str, Mapping[Phrase, str]] = {
    "en": {
        P.CALLS: "Hello, I have a call for you from {caller}.",
        P.SOMEBODY: "a caller",
        P.OFFER: "To accept the call, press 1 or say yes. To decline it, press 2 or say no.",
        P.DECLINED: "All right. Goodbye.",
        P.UNDECIDED: "I will try somebody else. Goodbye.",
        P.CALLER_GONE: "The caller has just hung up. Goodbye.",
        P.OTHER_CHOSEN: "A colleague has accepted the call. Goodbye.",
        P.CONNECTING: "One moment, I am connecting you now.",
    },
    "de": {
        P.CALLS: "Guten Tag, ich habe einen Anruf für Sie von {caller}.",
        P.SOMEBODY: "einem Anrufer",
        P.OFFER: "Um ihn anzunehmen, drücken Sie die 1 oder sagen Sie Ja. "
        "Um ihn abzulehnen, drücken Sie die 2 oder sagen Sie Nein.",
        P.DECLINED: "In Ordnung. Auf Wiederhören.",
        P.UNDECIDED: "Ich versuche es bei jemand anderem. Auf Wiederhören.",
        P.CALLER_GONE: "Der Anrufer hat gerade aufgelegt. Auf Wiederhören.",
        P.OTHER_CHOSEN: "Jemand anderes hat den Anruf angenommen. Auf Wiederhören.",
        P.CONNECTING: "Einen Moment, ich verbinde Sie jetzt.",
    },
    "fr": {
        P.CALLS: "Bonjour, j'ai un appel pour vous de la part de {caller}.",
        P.SOMEBODY: "quelqu'un",
        P.OFFER: "Pour l'accepter, appuyez sur 1 ou dites oui. "
        "Pour le refuser, appuyez sur 2 ou dites non.",
        P.DECLINED: "D'accord. Au revoir.",
        P.UNDECIDED: "Je vais essayer quelqu'un d'autre. Au revoir.",
        P.CALLER_GONE: "La personne vient de raccrocher. Au revoir.",
        P.OTHER_CHOSEN: "Un collègue a accepté l'appel. Au revoir.",
        P.CONNECTING: "Un instant, je vous mets en relation.",
    },
    "es": {
        P.CALLS: "Hola, tengo una llamada para usted de {caller}.",
        P.SOMEBODY: "un cliente",
        P.OFFER: "Para aceptarla, pulse 1 o diga sí. Para rechazarla, pulse 2 o diga no.",
        P.DECLINED: "De acuerdo. Adiós.",
        P.UNDECIDED: "Lo intentaré con otra persona. Adiós.",
        P.CALLER_GONE: "La persona acaba de colgar. Adiós.",
        P.OTHER_CHOSEN: "Otra persona ha aceptado la llamada. Adiós.",
        P.CONNECTING: "Un momento, le paso ahora mismo.",
    },
    "it": {
        P.CALLS: "Buongiorno, ho una chiamata per lei da {caller}.",
        P.SOMEBODY: "un cliente",
        P.OFFER: "Per accettarla, prema 1 o dica sì. Per rifiutarla, prema 2 o dica no.",
        P.DECLINED: "Va bene. Arrivederci.",
        P.UNDECIDED: "Provo con qualcun altro. Arrivederci.",
        P.CALLER_GONE: "Chi chiamava ha appena riagganciato. Arrivederci.",
        P.OTHER_CHOSEN: "Un collega ha accettato la chiamata. Arrivederci.",
        P.CONNECTING: "Un momento, la metto in contatto adesso.",
    },
    "pt": {
        P.CALLS: "Olá, tenho uma chamada para si de {caller}.",
        P.SOMEBODY: "um cliente",
        P.OFFER: "Para aceitar, prima 1 ou diga sim. Para recusar, prima 2 ou diga não.",
        P.DECLINED: "Está bem. Adeus.",
        P.UNDECIDED: "Vou tentar outra pessoa. Adeus.",
        P.CALLER_GONE: "A pessoa acabou de desligar. Adeus.",
        P.OTHER_CHOSEN: "Um colega aceitou a chamada. Adeus.",
        P.CONNECTING: "Um momento, vou passar a ligação agora.",
    },
    "nl": {
        P.CALLS: "Hallo, ik heb een gesprek voor u van {caller}.",
        P.SOMEBODY: "een beller",
        P.OFFER: "Druk op 1 of zeg ja om het aan te nemen. Druk op 2 of zeg nee om te weigeren.",
        P.DECLINED: "Goed. Tot ziens.",
        P.UNDECIDED: "Ik probeer het bij iemand anders. Tot ziens.",
        P.CALLER_GONE: "De beller heeft net opgehangen. Tot ziens.",
        P.OTHER_CHOSEN: "Een collega heeft het gesprek aangenomen. Tot ziens.",
        P.CONNECTING: "Een moment, ik verbind u nu door.",
    },
    "ja": {
        P.CALLS: "お疲れさまです。{caller}からお電話が入っています。",
        P.SOMEBODY: "お客様",
        P.OFFER: "お受けになる場合は1を押すか、はいとおっしゃってください。"
        "お断りになる場合は2を押すか、いいえとおっしゃってください。",
        P.DECLINED: "承知しました。失礼いたします。",
        P.UNDECIDED: "ほかの者にあたります。失礼いたします。",
        P.CALLER_GONE: "お客様が電話をお切りになりました。失礼いたします。",
        P.OTHER_CHOSEN: "ほかの者が電話を受けました。失礼いたします。",
        P.CONNECTING: "少々お待ちください。ただいまおつなぎします。",
    },
    "zh": {
        P.CALLS: "您好,有一个来自{caller}的电话找您。",
        P.SOMEBODY: "客户",
        P.OFFER: "接听请按1或说“好”,拒绝请按2或说“不”。",
        P.DECLINED: "好的,再见。",
        P.UNDECIDED: "我会联系其他人,再见。",
        P.CALLER_GONE: "对方刚刚挂断了电话,再见。",
        P.OTHER_CHOSEN: "其他同事已接听,再见。",
        P.CONNECTING: "请稍等,现在为您接通。",
    },
}
"""By ISO 639 code; every language has every phrase."""


def phrase(which: Phrase, language: str) -> str:
    """Returns the phrase in a language such as "de" or "de-AT", in English for other languages."""
    return in_language(PHRASES, language)[which]
