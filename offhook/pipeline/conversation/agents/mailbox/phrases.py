"""What is said to whoever listens to messages by phone: a table of language x phrase."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum, auto

from offhook.pipeline.conversation.agents.mailbox.mailbox import Message
from offhook.pipeline.conversation.sentences import in_language


class Phrase(Enum):
    COUNT = auto()
    NONE = auto()
    MESSAGE = auto()
    """Before each message."""
    TODAY = auto()
    YESTERDAY = auto()
    DAYS = auto()
    """More than a day ago."""
    UNKNOWN = auto()
    """A caller whose number and name are unknown."""
    MENU = auto()
    """After each message."""
    DELETED = auto()
    FAILED = auto()
    """The messages cannot be reached, or one could not be deleted."""
    UNPLAYABLE = auto()
    """A message has neither sound nor words here."""
    END = auto()
    """After the last one."""
    GOODBYE = auto()


P = Phrase
PHRASES: Mapping[str, Mapping[Phrase, str]] = {
    "en": {
        P.COUNT: "New messages: {new}. Heard messages: {heard}.",
        P.NONE: "You have no messages.",
        P.MESSAGE: "Message {number}, {day} at {time}, from {caller}.",
        P.TODAY: "today",
        P.YESTERDAY: "yesterday",
        P.DAYS: "{days} days ago",
        P.UNKNOWN: "an unknown number",
        P.MENU: "To hear it again, press 1. To delete it, press 2. For the next one, press 3.",
        P.DELETED: "Deleted.",
        P.FAILED: "That is not possible now. Please try again later.",
        P.UNPLAYABLE: "This message cannot be played now.",
        P.END: "There are no more messages.",
        P.GOODBYE: "Goodbye.",
    },
    "de": {
        P.COUNT: "Neue Nachrichten: {new}. Gehörte Nachrichten: {heard}.",
        P.NONE: "Sie haben keine Nachrichten.",
        P.MESSAGE: "Nachricht {number}, {day} um {time} Uhr, von {caller}.",
        P.TODAY: "heute",
        P.YESTERDAY: "gestern",
        P.DAYS: "vor {days} Tagen",
        P.UNKNOWN: "einer unbekannten Nummer",
        P.MENU: "Um sie noch einmal zu hören, drücken Sie die 1. Zum Löschen drücken Sie die 2. "
        "Für die nächste drücken Sie die 3.",
        P.DELETED: "Gelöscht.",
        P.FAILED: "Das ist gerade nicht möglich. Bitte versuchen Sie es später noch einmal.",
        P.UNPLAYABLE: "Diese Nachricht kann gerade nicht abgespielt werden.",
        P.END: "Es gibt keine weiteren Nachrichten.",
        P.GOODBYE: "Auf Wiederhören.",
    },
    "fr": {
        P.COUNT: "Nouveaux messages : {new}. Messages écoutés : {heard}.",
        P.NONE: "Vous n'avez aucun message.",
        P.MESSAGE: "Message {number}, {day} à {time}, de {caller}.",
        P.TODAY: "aujourd'hui",
        P.YESTERDAY: "hier",
        P.DAYS: "il y a {days} jours",
        P.UNKNOWN: "un numéro inconnu",
        P.MENU: "Pour le réécouter, appuyez sur 1. Pour l'effacer, appuyez sur 2. "
        "Pour le suivant, appuyez sur 3.",
        P.DELETED: "Effacé.",
        P.FAILED: "Ce n'est pas possible pour le moment. Veuillez réessayer plus tard.",
        P.UNPLAYABLE: "Ce message ne peut pas être lu pour le moment.",
        P.END: "Il n'y a plus de messages.",
        P.GOODBYE: "Au revoir.",
    },
    "es": {
        P.COUNT: "Mensajes nuevos: {new}. Mensajes escuchados: {heard}.",
        P.NONE: "No tiene mensajes.",
        P.MESSAGE: "Mensaje {number}, {day} a las {time}, de {caller}.",
        P.TODAY: "hoy",
        P.YESTERDAY: "ayer",
        P.DAYS: "hace {days} días",
        P.UNKNOWN: "un número desconocido",
        P.MENU: "Para escucharlo de nuevo, pulse 1. Para borrarlo, pulse 2. "
        "Para el siguiente, pulse 3.",
        P.DELETED: "Borrado.",
        P.FAILED: "No es posible en este momento. Inténtelo de nuevo más tarde.",
        P.UNPLAYABLE: "Este mensaje no se puede reproducir ahora.",
        P.END: "No hay más mensajes.",
        P.GOODBYE: "Adiós.",
    },
    "it": {
        P.COUNT: "Messaggi nuovi: {new}. Messaggi ascoltati: {heard}.",
        P.NONE: "Non ha messaggi.",
        P.MESSAGE: "Messaggio {number}, {day} alle {time}, da {caller}.",
        P.TODAY: "oggi",
        P.YESTERDAY: "ieri",
        P.DAYS: "{days} giorni fa",
        P.UNKNOWN: "un numero sconosciuto",
        P.MENU: "Per riascoltarlo, prema 1. Per cancellarlo, prema 2. Per il prossimo, prema 3.",
        P.DELETED: "Cancellato.",
        P.FAILED: "Al momento non è possibile. Riprovi più tardi.",
        P.UNPLAYABLE: "Questo messaggio non può essere riprodotto ora.",
        P.END: "Non ci sono altri messaggi.",
        P.GOODBYE: "Arrivederci.",
    },
    "pt": {
        P.COUNT: "Mensagens novas: {new}. Mensagens ouvidas: {heard}.",
        P.NONE: "Não tem mensagens.",
        P.MESSAGE: "Mensagem {number}, {day} às {time}, de {caller}.",
        P.TODAY: "hoje",
        P.YESTERDAY: "ontem",
        P.DAYS: "há {days} dias",
        P.UNKNOWN: "um número desconhecido",
        P.MENU: "Para ouvir de novo, prima 1. Para apagar, prima 2. Para a seguinte, prima 3.",
        P.DELETED: "Apagada.",
        P.FAILED: "De momento não é possível. Tente novamente mais tarde.",
        P.UNPLAYABLE: "Não é possível reproduzir esta mensagem agora.",
        P.END: "Não há mais mensagens.",
        P.GOODBYE: "Adeus.",
    },
    "nl": {
        P.COUNT: "Nieuwe berichten: {new}. Beluisterde berichten: {heard}.",
        P.NONE: "U hebt geen berichten.",
        P.MESSAGE: "Bericht {number}, {day} om {time}, van {caller}.",
        P.TODAY: "vandaag",
        P.YESTERDAY: "gisteren",
        P.DAYS: "{days} dagen geleden",
        P.UNKNOWN: "een onbekend nummer",
        P.MENU: "Druk op 1 om het nog eens te horen, op 2 om het te wissen, "
        "of op 3 voor het volgende.",
        P.DELETED: "Gewist.",
        P.FAILED: "Dat is nu niet mogelijk. Probeer het later opnieuw.",
        P.UNPLAYABLE: "Dit bericht kan nu niet worden afgespeeld.",
        P.END: "Er zijn geen berichten meer.",
        P.GOODBYE: "Tot ziens.",
    },
    "ja": {
        P.COUNT: "新しいメッセージは{new}件、再生済みのメッセージは{heard}件です。",
        P.NONE: "メッセージはありません。",
        P.MESSAGE: "メッセージ{number}、{day}{time}、{caller}からです。",
        P.TODAY: "今日",
        P.YESTERDAY: "昨日",
        P.DAYS: "{days}日前",
        P.UNKNOWN: "番号不明の方",
        P.MENU: "もう一度聞くには1を、消去するには2を、次のメッセージは3を押してください。",
        P.DELETED: "消去しました。",
        P.FAILED: "ただいま操作できません。後でもう一度お試しください。",
        P.UNPLAYABLE: "このメッセージはただいま再生できません。",
        P.END: "メッセージは以上です。",
        P.GOODBYE: "失礼いたします。",
    },
    "zh": {
        P.COUNT: "新留言{new}条,已听留言{heard}条。",
        P.NONE: "您没有留言。",
        P.MESSAGE: "第{number}条留言,{day}{time},来自{caller}。",
        P.TODAY: "今天",
        P.YESTERDAY: "昨天",
        P.DAYS: "{days}天前",
        P.UNKNOWN: "未知号码",
        P.MENU: "重听请按1,删除请按2,听下一条请按3。",
        P.DELETED: "已删除。",
        P.FAILED: "目前无法操作,请稍后再试。",
        P.UNPLAYABLE: "目前无法播放这条留言。",
        P.END: "没有更多留言。",
        P.GOODBYE: "再见。",
    },
}
"""By ISO 639 code; every language has every phrase."""


def phrase(which: Phrase, language: str) -> str:
    """Returns the phrase in a language such as "de" or "de-AT", in English for other languages."""
    return in_language(PHRASES, language)[which]


def count(messages: Sequence[Message], language: str) -> str:
    """Returns how many messages there are."""
    heard = sum(message.heard for message in messages)
    text = phrase(P.COUNT if messages else P.NONE, language)
    return text.format(new=len(messages) - heard, heard=heard)


def introduction(number: int, message: Message, now: datetime, language: str) -> str:
    """Returns what is said before a message; its time is that of `now`'s time zone."""
    at = message.left_at.astimezone(now.tzinfo)
    days = (now.date() - at.date()).days
    day = phrase(P.TODAY if days < 1 else P.YESTERDAY if days == 1 else P.DAYS, language)
    return phrase(P.MESSAGE, language).format(
        number=number,
        day=day.format(days=days),
        time=f"{at.hour}:{at.minute:02}",
        caller=message.caller or phrase(P.UNKNOWN, language),
    )
