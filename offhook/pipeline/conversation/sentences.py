"""Sentences that a call speaks without its agent: a table of language x occasion."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TypeVar

Texts = TypeVar("Texts")


class Occasion(StrEnum):
    GREETING = "greeting"
    """The agent cannot greet the caller."""
    TROUBLE = "trouble"
    """The agent has no answer to the caller's turn."""
    BROKEN_OFF = "broken_off"
    """An answer is broken off."""
    CUT_SHORT = "cut_short"
    """The server ends an answer at its limit, in mid-sentence."""
    FILTERED = "filtered"
    """The server withholds an answer, or the rest of it."""
    WAIT = "wait"
    """The agent thinks, or its action takes long."""
    NOT_HEARD = "not_heard"
    """The caller's words were lost."""
    TRANSFER = "transfer"
    """The agent gives up and the caller is transferred."""
    GOODBYE = "goodbye"
    """The agent gives up and nobody else is available."""
    CLOSING = "closing"
    """The server ends the call."""
    STILL_THERE = "still_there"
    """The caller is silent, in another language than that of the agent's own words."""
    RESUMED = "resumed"
    """The call continues at another server, and it is the caller's turn."""
    NOT_TRANSFERRED = "not_transferred"
    """The caller is back from a transfer that nobody answered."""
    RECORDED = "recorded"
    """The call is recorded, in another language than that of the notice."""


O = Occasion  # noqa: E741
USUAL_LANGUAGE = "en"
SENTENCES: Mapping[str, Mapping[Occasion, str]] = {
    "en": {
        O.GREETING: "Hello! How can I help you?",
        O.TROUBLE: "Sorry, I have a technical problem. Could you say that again, please?",
        O.BROKEN_OFF: "Sorry, I lost my thread. Could you ask me again, please?",
        O.CUT_SHORT: "I have to stop here. Shall I go on?",
        O.FILTERED: "Sorry, I cannot say more about that.",
        O.WAIT: "One moment, please.",
        O.NOT_HEARD: "Sorry, I could not hear you. Could you say that again, please?",
        O.TRANSFER: "Sorry, I cannot help you right now. I will connect you with somebody.",
        O.GOODBYE: "Sorry, I cannot help you right now. Please call again later. Goodbye.",
        O.CLOSING: "Sorry, we have to end this call now. Please call again later. Goodbye.",
        O.STILL_THERE: "Are you still there?",
        O.RESUMED: "Sorry for the interruption, I am back. Please go on.",
        O.NOT_TRANSFERRED: "Sorry, nobody answered there. How else can I help you?",
        O.RECORDED: "This call is recorded.",
    },
    "de": {
        O.GREETING: "Guten Tag! Wie kann ich Ihnen helfen?",
        O.TROUBLE: "Entschuldigung, ich habe ein technisches Problem. "
        "Können Sie das bitte noch einmal sagen?",
        O.BROKEN_OFF: "Entschuldigung, ich habe den Faden verloren. "
        "Fragen Sie mich bitte noch einmal.",
        O.CUT_SHORT: "Hier muss ich unterbrechen. Soll ich weitermachen?",
        O.FILTERED: "Dazu kann ich leider nicht mehr sagen.",
        O.WAIT: "Einen Moment, bitte.",
        O.NOT_HEARD: "Entschuldigung, ich konnte Sie nicht hören. "
        "Können Sie das bitte noch einmal sagen?",
        O.TRANSFER: "Leider kann ich Ihnen gerade nicht helfen. Ich verbinde Sie weiter.",
        O.GOODBYE: "Leider kann ich Ihnen gerade nicht helfen. "
        "Bitte rufen Sie später noch einmal an. Auf Wiederhören.",
        O.CLOSING: "Leider müssen wir das Gespräch jetzt beenden. "
        "Bitte rufen Sie später noch einmal an. Auf Wiederhören.",
        O.STILL_THERE: "Sind Sie noch da?",
        O.RESUMED: "Entschuldigen Sie die Unterbrechung, ich bin wieder da. Bitte fahren Sie fort.",
        O.NOT_TRANSFERRED: "Dort hat leider niemand abgenommen. Wie kann ich Ihnen sonst helfen?",
        O.RECORDED: "Dieses Gespräch wird aufgezeichnet.",
    },
    "fr": {
        O.GREETING: "Bonjour ! Comment puis-je vous aider ?",
        O.TROUBLE: "Désolé, j'ai un problème technique. Pouvez-vous répéter, s'il vous plaît ?",
        O.BROKEN_OFF: "Désolé, j'ai perdu le fil. Pouvez-vous reposer votre question ?",
        O.CUT_SHORT: "Je dois m'arrêter ici. Dois-je continuer ?",
        O.FILTERED: "Désolé, je ne peux pas en dire plus à ce sujet.",
        O.WAIT: "Un instant, s'il vous plaît.",
        O.NOT_HEARD: "Désolé, je ne vous ai pas entendu. Pouvez-vous répéter, s'il vous plaît ?",
        O.TRANSFER: "Désolé, je ne peux pas vous aider pour le moment. Je vous mets en relation.",
        O.GOODBYE: "Désolé, je ne peux pas vous aider pour le moment. "
        "Veuillez rappeler plus tard. Au revoir.",
        O.CLOSING: "Désolé, nous devons terminer cet appel. "
        "Veuillez rappeler plus tard. Au revoir.",
        O.STILL_THERE: "Êtes-vous toujours là ?",
        O.RESUMED: "Excusez-moi pour l'interruption. Continuez, je vous en prie.",
        O.NOT_TRANSFERRED: "Désolé, personne n'a répondu. Puis-je vous aider autrement ?",
        O.RECORDED: "Cet appel est enregistré.",
    },
    "es": {
        O.GREETING: "¡Hola! ¿En qué puedo ayudarle?",
        O.TROUBLE: "Lo siento, tengo un problema técnico. ¿Puede repetirlo, por favor?",
        O.BROKEN_OFF: "Lo siento, he perdido el hilo. ¿Puede preguntarme otra vez?",
        O.CUT_SHORT: "Tengo que parar aquí. ¿Quiere que siga?",
        O.FILTERED: "Lo siento, no puedo decir más sobre eso.",
        O.WAIT: "Un momento, por favor.",
        O.NOT_HEARD: "Lo siento, no he podido oírle. ¿Puede repetirlo, por favor?",
        O.TRANSFER: "Lo siento, ahora no puedo ayudarle. Le paso con otra persona.",
        O.GOODBYE: "Lo siento, ahora no puedo ayudarle. Llame más tarde, por favor. Adiós.",
        O.CLOSING: "Lo siento, tenemos que terminar la llamada. Llame más tarde, por favor. Adiós.",
        O.STILL_THERE: "¿Sigue ahí?",
        O.RESUMED: "Disculpe la interrupción, ya estoy de vuelta. Continúe, por favor.",
        O.NOT_TRANSFERRED: "Lo siento, no ha contestado nadie. ¿En qué más puedo ayudarle?",
        O.RECORDED: "Esta llamada se graba.",
    },
    "it": {
        O.GREETING: "Buongiorno! Come posso aiutarla?",
        O.TROUBLE: "Mi dispiace, ho un problema tecnico. Può ripetere, per favore?",
        O.BROKEN_OFF: "Mi dispiace, ho perso il filo. Può chiedermelo di nuovo?",
        O.CUT_SHORT: "Devo fermarmi qui. Vuole che continui?",
        O.FILTERED: "Mi dispiace, non posso dire altro su questo.",
        O.WAIT: "Un momento, per favore.",
        O.NOT_HEARD: "Mi dispiace, non l'ho sentita. Può ripetere, per favore?",
        O.TRANSFER: "Mi dispiace, ora non posso aiutarla. La metto in contatto con qualcuno.",
        O.GOODBYE: "Mi dispiace, ora non posso aiutarla. Richiami più tardi. Arrivederci.",
        O.CLOSING: "Mi dispiace, dobbiamo chiudere la chiamata. Richiami più tardi. Arrivederci.",
        O.STILL_THERE: "È ancora in linea?",
        O.RESUMED: "Mi scuso per l'interruzione, sono di nuovo qui. Continui pure.",
        O.NOT_TRANSFERRED: "Mi dispiace, non ha risposto nessuno. Posso aiutarla in altro modo?",
        O.RECORDED: "Questa chiamata viene registrata.",
    },
    "pt": {
        O.GREETING: "Olá! Como posso ajudar?",
        O.TROUBLE: "Desculpe, tenho um problema técnico. Pode repetir, por favor?",
        O.BROKEN_OFF: "Desculpe, perdi o fio à meada. Pode perguntar outra vez?",
        O.CUT_SHORT: "Tenho de parar aqui. Quer que continue?",
        O.FILTERED: "Desculpe, não posso dizer mais sobre isso.",
        O.WAIT: "Um momento, por favor.",
        O.NOT_HEARD: "Desculpe, não consegui ouvir. Pode repetir, por favor?",
        O.TRANSFER: "Desculpe, agora não posso ajudar. Vou passar a ligação a outra pessoa.",
        O.GOODBYE: "Desculpe, agora não posso ajudar. Ligue mais tarde, por favor. Adeus.",
        O.CLOSING: "Desculpe, temos de terminar a chamada. Ligue mais tarde, por favor. Adeus.",
        O.STILL_THERE: "Ainda está aí?",
        O.RESUMED: "Desculpe a interrupção, já estou de volta. Continue, por favor.",
        O.NOT_TRANSFERRED: "Desculpe, ninguém atendeu. Posso ajudar de outra forma?",
        O.RECORDED: "Esta chamada está a ser gravada.",
    },
    "nl": {
        O.GREETING: "Goedendag! Waarmee kan ik u helpen?",
        O.TROUBLE: "Sorry, ik heb een technisch probleem. Kunt u dat nog eens zeggen?",
        O.BROKEN_OFF: "Sorry, ik ben de draad kwijt. Kunt u het nog eens vragen?",
        O.CUT_SHORT: "Ik moet hier stoppen. Zal ik verdergaan?",
        O.FILTERED: "Sorry, daar kan ik niet meer over zeggen.",
        O.WAIT: "Een ogenblik, alstublieft.",
        O.NOT_HEARD: "Sorry, ik kon u niet verstaan. Kunt u dat nog eens zeggen?",
        O.TRANSFER: "Sorry, ik kan u nu niet helpen. Ik verbind u door.",
        O.GOODBYE: "Sorry, ik kan u nu niet helpen. Belt u later nog eens. Tot ziens.",
        O.CLOSING: "Sorry, we moeten dit gesprek nu beëindigen. Belt u later nog eens. Tot ziens.",
        O.STILL_THERE: "Bent u er nog?",
        O.RESUMED: "Excuses voor de onderbreking, ik ben er weer. Gaat u verder.",
        O.NOT_TRANSFERRED: "Sorry, er werd niet opgenomen. Kan ik u op een andere manier helpen?",
        O.RECORDED: "Dit gesprek wordt opgenomen.",
    },
    "ja": {
        O.GREETING: "お電話ありがとうございます。ご用件をお聞かせください。",
        O.TROUBLE: "申し訳ございません。技術的な問題が起きています。"
        "もう一度おっしゃっていただけますか。",
        O.BROKEN_OFF: "申し訳ございません。途中で途切れました。もう一度お願いできますか。",
        O.CUT_SHORT: "ここで一度止めます。続けましょうか。",
        O.FILTERED: "申し訳ございません。これ以上はお答えできません。",
        O.WAIT: "少々お待ちください。",
        O.NOT_HEARD: "申し訳ございません。聞き取れませんでした。もう一度お願いできますか。",
        O.TRANSFER: "申し訳ございません。ただいま対応できません。担当の者におつなぎします。",
        O.GOODBYE: "申し訳ございません。ただいま対応できません。後ほどおかけ直しください。",
        O.CLOSING: "申し訳ございません。お電話を終了いたします。後ほどおかけ直しください。",
        O.STILL_THERE: "もしもし、聞こえていますか。",
        O.RESUMED: "通話が途切れて申し訳ございません。どうぞお続けください。",
        O.NOT_TRANSFERRED: "申し訳ございません。どなたも応答しませんでした。"
        "ほかにご用件はございますか。",
        O.RECORDED: "この通話は録音されています。",
    },
    "zh": {
        O.GREETING: "您好!请问有什么可以帮您?",
        O.TROUBLE: "抱歉,我遇到了技术问题。请您再说一遍,好吗?",
        O.BROKEN_OFF: "抱歉,我刚才中断了。请您再问一遍,好吗?",
        O.CUT_SHORT: "我先说到这里。要我继续吗?",
        O.FILTERED: "抱歉,关于这一点我不能再多说了。",
        O.WAIT: "请稍等。",
        O.NOT_HEARD: "抱歉,我没有听到您的话。请您再说一遍,好吗?",
        O.TRANSFER: "抱歉,我现在无法帮助您。我为您转接其他人。",
        O.GOODBYE: "抱歉,我现在无法帮助您。请稍后再来电。再见。",
        O.CLOSING: "抱歉,我们必须结束通话。请稍后再来电。再见。",
        O.STILL_THERE: "您还在吗？",
        O.RESUMED: "抱歉刚才中断了,我回来了。请您继续。",
        O.NOT_TRANSFERRED: "抱歉,电话没有人接听。我还能怎么帮您?",
        O.RECORDED: "本次通话将被录音。",
    },
}
"""By ISO 639 code; every language has every occasion."""


def excuses(own: Mapping[Occasion, str] | None = None) -> Iterator[str]:
    """Yields all sentences of all languages, and `own` ones of the configuration, that excuse the
    agent: nothing of which is an answer of its model."""
    for sentences in (*SENTENCES.values(), own or {}):
        for occasion, text in sentences.items():
            if occasion is not Occasion.GREETING:
                yield text


def sentence(
    occasion: Occasion, language: str = "", own: Mapping[Occasion, str] | None = None
) -> str:
    """Returns the sentence in a language such as "de" or "de-AT", in English for other languages.
    `own` holds sentences of the configuration, which take precedence."""
    if own and (text := own.get(occasion)):
        return text
    return in_language(SENTENCES, language)[occasion]


def in_language(texts: Mapping[str, Texts], language: str) -> Texts:
    """Returns of texts by ISO 639 codes those in a language such as "de" or "de-AT", in English for
    other languages."""
    code = language.lower().replace("_", "-").partition("-")[0]
    return texts.get(code, texts[USUAL_LANGUAGE])
