"""What answers by its words: a table of phrases in English, German, French, Spanish, Italian, Dutch
and Portuguese.

Recognizers write words in many ways, so phrases are compared without accents, case and signs. The
words are of whoever was called: they are compared and nothing else.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from offhook.media.answer_status import Result

MAX_CHARS = 1500
"""Characters of what was said that are looked at, the last ones."""


@dataclass(frozen=True)
class Heard:
    """What words say of who speaks."""

    result: Result
    phrase: str
    certain: bool
    """Of what is no person: whether no person says that to somebody who calls. Of a person: whether
    it decides at once."""
    invites: bool = False
    """Whether it speaks of a message that can be left."""


def _any(*phrases: str) -> re.Pattern[str]:
    """Return a pattern of all of these; "_" stands for up to four words, "~" for up to one."""
    patterns = (p.replace("_", r"(?:\S+ ){0,4}").replace("~", r"(?:\S+ )?") for p in phrases)
    return re.compile(r"\b(?:" + "|".join(patterns) + r")\b")


_QUESTIONS = _any(
    r"would you like (?:me )?to _leave",
    r"(?:do|did) you (?:want|wish) to _leave",
    r"(?:can|may|could|shall) i (?:take|leave|have) _message",
    r"(?:can|could) you leave",
    r"(?:want|like) to leave",
    r"(?:mochten|wollen) sie _nachricht",
    r"(?:kann|soll|darf) ich (?:ihm |ihr )?(?:etwas|was|eine nachricht)",
    r"(?:voulez|souhaitez) vous _(?:laisser|message)",
    r"(?:quiere|desea|quieres) _(?:dejar|mensaje)",
    r"(?:vuole|desidera|vuoi) _(?:lasciare|messaggio)",
    r"(?:wilt|wil) (?:u|je) _(?:bericht|boodschap)",
    r"(?:quer|deseja|gostaria de|posso) _(?:deixar|recado|mensagem)",
    r"i (?:can|could|ll|will) (?:take|give|pass|leave) (?:\S+ ){0,3}message",
    r"message with (?:me|us)",
)
"""What a person asks or offers about messages."""

_SCREENING = _any(
    r"(?:record|state|say|tell me|give|provide) _name and _(?:reason|why|purpose)",
    r"(?:your|ur) name and (?:the )?(?:reason|why|purpose)",
    r"(?:who is|who s|whos) calling and (?:why|the reason)",
    r"name and (?:reason|why) _(?:you are|you re|for) call(?:ing)?",
    r"screening service",
    r"call (?:screening|assist)",
    r"screen(?:ing|s)? (?:this |your |the )?call",
    r"using a _(?:service|assistant) from google",
    r"google (?:will|call|assistant) _(?:screen|get a copy|receive)",
    r"(?:will )?get a copy of this conversation",
    r"see if (?:this person|they|he|she) (?:is|are) available",
    r"ihren namen und _(?:grund|anlass|zweck)",
    r"(?:namen|grund) _(?:ihres )?anrufs? _(?:nennen|an|sagen)",
    r"(?:anrufer|anruf)(?:filter|schutz|prufung|screening)",
    r"votre nom et (?:la |le )?(?:raison|motif|objet)",
    r"(?:raison|motif|objet) de (?:votre|l) ?appel",
    r"service de filtrage",
    r"filtr(?:e|age) (?:les |des |d )?appels?",
    r"su nombre y (?:el |la )?(?:motivo|razon)",
    r"(?:motivo|razon) de (?:su|la|tu) llamada",
    r"(?:filtrado|filtro|filtra) (?:de )?(?:las )?llamadas",
    r"(?:suo |il )?nome e (?:il )?motivo",
    r"motivo della (?:sua )?(?:chiamata|telefonata)",
    r"filtr(?:o|aggio|a) (?:delle |le )?chiamate",
    r"(?:uw|je) naam en (?:de )?reden",
    r"reden (?:van|voor) (?:uw|je|het|dit) (?:oproep|gesprek|telefoontje|bellen)",
    r"(?:gesprekken|oproepen?) ?(?:filter|screen)\w*",
    r"(?:name|who you are|who s calling) and what (?:\S+ )?(?:about|regarding|concerning|for)",
    r"who you are and what",
    r"screen(?:s|ing)? (?:their|his|her|my|all|incoming|unknown) _calls?",
    r"namen und (?:warum|weshalb|worum|wieso)",
    r"votre nom et (?:pourquoi|ce que)",
    r"su nombre y (?:por que|para que)",
    r"(?:suo |il )?nome e (?:perche|per quale)",
    r"(?:uw|je) naam en waarom",
    r"(?:seu|o) nome e (?:o motivo|a razao|o assunto|porque|por que)",
    r"motivo d[ao] (?:sua )?(?:chamada|ligacao)",
)
_MENU = _any(
    r"(?:press|dial|push|hit|enter) (?:or say )?(?:one|two|three|four|five|six|seven|eight|nine"
    r"|zero|star|pound|hash|the (?:star|pound|hash)|[0-9])",
    r"(?:one|two|three|four|[1-9]) for (?:sales|support|service|billing|english|spanish|more)",
    r"(?:if you know|enter|dial) _(?:extension|party s extension)",
    r"(?:following|main|these) (?:menu|options)",
    r"(?:menu )?options have (?:recently )?changed",
    r"listen carefully",
    r"(?:drucken|wahlen|drucke|wahle|druck|taste) (?:sie |bitte |jetzt |die |taste )*"
    r"(?:eins|zwei|zwo|drei|vier|funf|sechs|null|raute|stern|[0-9])",
    r"(?:tapez|appuyez|composez|faites) (?:sur )?(?:le |la )?(?:touche )?"
    r"(?:un|deux|trois|quatre|cinq|zero|diese|etoile|[0-9])",
    r"(?:pulse|oprima|marque|presione|pulsa|marca) (?:el |la |numero |tecla )*"
    r"(?:uno|dos|tres|cuatro|cinco|cero|almohadilla|asterisco|[0-9])",
    r"(?:premere|prema|premi|digitare|digiti|digita|selezionare) (?:il |la |tasto |numero )*"
    r"(?:uno|due|tre|quattro|cinque|zero|cancelletto|asterisco|[0-9])",
    r"(?:toets|druk|kies|kiest u) (?:op |u |dan |een |de )*"
    r"(?:een|twee|drie|vier|vijf|nul|hekje|sterretje|[0-9])",
    r"(?:prima|pressione|carregue|marque|digite|tecle|aperte|disque) (?:na |no |a |o |em |tecla |"
    r"numero )*(?:um|dois|tres|quatro|cinco|zero|cardinal|asterisco|estrela|[0-9])",
)
_TONE_EN = r"(?:tone|beep|signal|beeps|tones)"
_MACHINE = _any(
    rf"(?:after|at|following|hear|until) (?:the |this |a )?(?:long |short |sound of the )*"
    rf"{_TONE_EN}",
    r"(?:please |just |kindly )?(?:leave|record) (?:me |us |him |her |them )?(?:a |an |your |the |"
    r"any )?(?:short |brief |detailed |quick |name |number |and |telephone |phone |voice )*message",
    r"leave _(?:name|number) _(?:and|with)",
    r"(?:leave|record) your (?:name|number|details|message)",
    r"(?:voice ?mail|mail ?box|voice message|answering (?:machine|service)|messaging system)",
    r"not available to (?:take|answer|come)",
    r"(?:forwarded|transferred|diverted) to (?:an? )?_(?:voice|automat|mail|answer)\w*",
    r"(?:nach|mit) dem (?:signal|piep|pieps|ton|signalton|piepton|beep)\w*",
    r"(?:hinterlassen|hinterlasst|hinterlass|sprechen) (?:sie |mir |uns |bitte |einfach )*"
    r"(?:eine |ihre |deine |ihren |eure )?(?:kurze )?(?:nachricht|botschaft|namen|mitteilung)",
    r"nachricht (?:hinterlassen|aufsprechen|aufzusprechen|zu hinterlassen)",
    r"(?:anrufbeantworter|mail ?box|sprachbox|voice ?box)",
    r"(?:apres|au|des) (?:le |du )?(?:signal|bip|biip|tonalite)\w*",
    r"(?:laissez|laisser|deposez|enregistrez) (?:moi |nous |lui )?(?:un |votre |vos |le )"
    r"(?:petit |bref )?(?:message|nom|coordonnees)",
    r"(?:messagerie|repondeur|boite vocale)",
    r"(?:despues|tras|al|luego|oir) (?:de )?(?:la |el |del )?(?:senal|tono|pitido|bip|beep)",
    r"(?:deje|dejar|dejad|deja|dejenos|dejeme|grabe|grabar) (?:nos |me |aqui )?"
    r"(?:un |su |tu |el )?(?:breve )?(?:mensaje|recado|nombre)",
    r"(?:buzon de voz|buzon|contestador\w*)",
    r"dopo (?:il |aver sentito il )?(?:segnale|bip|beep|tono)",
    r"(?:lasciare|lasciate|lasci|lascia|lasciami|registrare|registri) (?:ci |mi |pure )?"
    r"(?:un |il |vostro |suo |tuo )*(?:breve )?(?:messaggio|nome|recapito)",
    r"(?:segreteria(?: telefonica)?|casella vocale)",
    r"na de (?:piep|pieptoon|toon|beep|biep|bieptoon)",
    r"(?:spreek|laat|bericht|boodschap) (?:uw |je |een |dan |een kort )*"
    r"(?:bericht|boodschap|naam)? ?(?:in|achter|na)",
    r"(?:voicemail|antwoordapparaat)",
    r"(?:apos|depois d[oa]|ao|ouvir) (?:o |do )?(?:sinal|bip|beep|tom)",
    r"(?:deixe|deixar|deixa|grave|gravar) (?:nos |me |lhe |ca |aqui )?(?:a |o |uma |um |sua |seu |"
    r"tua |teu )*(?:breve )?(?:mensagem|recado|nome|contacto|contato)",
    r"(?:caixa (?:de correio|postal|de voz|de mensagens)|correio de voz|secretaria eletronica|"
    r"atendedor)",
)
_MAYBE_MACHINE = _any(
    r"you(?: ?ve| have)? (?:reached|dial\w+|called)",
    r"(?:the|a|this|after|s) (?:beep|tone)",
    r"(?:can ?t|cannot|can not|unable to|not able to) (?:come to|take|answer|get to) "
    r"(?:the|your|my|this|you) (?:phone|call|telephone)",
    r"(?:will|ll) (?:get back to you|call you back|return your call|ring you back)",
    r"(?:on|for) (?:holiday|vacation|leave)",
    r"(?:are|is|re|m|am|we|currently|now) (?:all )?(?:closed|out)",
    r"sorry (?:i|we) missed",
    r"(?:rufe|rufen wir|melde mich|melden uns) _(?:sie |dich |euch )?(?:schnellst\w*|sobald|"
    r"baldmog\w*|umgehend|zuruck)",
    r"(?:nummer|anschluss) _gewahlt",
    r"(?:geschlossen|unterwegs|verreist|im urlaub|ausser haus)",
    r"(?:dank fur|danke fur) (?:ihren|deinen|euren) anruf",
    r"(?:peux|pouvons) pas (?:vous |te )?(?:repondre|prendre votre appel)",
    r"(?:rappellerai|rappellerons|vous rappelle(?:rai|rons)?) (?:des|aussitot|rapidement|au plus)",
    r"vous avez (?:appele|compose)",
    r"merci (?:d avoir appele|de votre appel|pour votre appel)",
    r"(?:fermee?s?|absents|en vacances|en conge)",
    r"no (?:puedo|podemos) (?:contestar|responder|atender (?:tu|su) llamada)",
    r"gracias por (?:llamar|su llamada|tu llamada)",
    r"(?:cerrad[oa]s?|de vacaciones|no estoy|no estamos)",
    r"non (?:posso|possiamo) risponder\w*",
    r"(?:richiameremo|richiamero|ricontatteremo) (?:appena|al piu|il prima|quanto)",
    r"grazie per (?:aver|la (?:sua|tua|vostra)) (?:chiamat\w|telefonat\w)",
    r"(?:chius[oiae]|in ferie|fuori casa|non ci (?:sono|siamo))",
    r"(?:bel|bellen) (?:ik|wij|we) (?:u|je) _terug",
    r"(?:bedankt voor|dank voor) (?:het|uw|je) (?:bellen|telefoontje|oproep)",
    r"(?:gesloten|met vakantie|op vakantie)",
    r"(?:ligou|telefonou) (?:para|a)",
    r"obrigad[oa] (?:por|pel[ao]) (?:ligar|ter ligado|sua|seu|chamada|contacto)",
    r"nao (?:posso|podemos|estou|estamos|esta) _(?:atender|disponive\w+|contactavel|em casa)",
    r"(?:fechad[oa]s?|de ferias|horario de atendimento)",
    r"(?:bem vind[oa]s?) (?:a|ao|aos|as)",
    r"(?:is|am|are|m|s) (?:not|currently not|un) ?(?:available|home|in|here|at my desk)",
    r"(?:isn t|aren t) available",
    r"(?:away|out of office|on (?:another|the other) (?:line|call))",
    r"(?:the )?(?:person|number|party|customer|subscriber) (?:you|that you)",
    r"thank(?:s| you) for (?:calling|ringing|phoning|your call)",
    r"(?:welcome to|willkommen (?:bei|beim|in|im)|bienvenue (?:a|au|aux|chez|sur|dans)|"
    r"bienvenid[oa]s? a|benvenut[oaie] (?:a|al|ai|alla|in|nel|da|su)|welkom bij)",
    r"(?:office|opening|business) hours",
    r"(?:leider|gerade|zurzeit|momentan|im moment) (?:\S+ ){0,3}(?:nicht|erreich\w*|besetzt)",
    r"(?:nicht|niemand) _(?:erreichbar|erreichen|da|zu hause)",
    r"(?:geschafts|burozeiten|offnungszeiten|sprechzeiten)",
    r"(?:vous etes bien|vous avez joint|bienvenue) (?:chez|sur|au|a|dans|le)",
    r"(?:pas|plus) (?:disponible|joignable|la pour)",
    r"absente?",
    r"(?:ha|has) (?:llamado|contactado) (?:a|con|al)",
    r"no (?:estamos|estoy|esta|podemos|puedo|se encuentra) _(?:disponible|atender\w*|contestar)?",
    r"horario de",
    r"(?:risponde|avete chiamato|ha chiamato|siamo|sono) (?:il|la|al|momentaneamente|assente)",
    r"non (?:siamo|sono|e|possiamo|posso) _(?:disponibil\w|raggiungibile|risponder\w*|in casa)",
    r"(?:dit is|u spreekt met) de (?:voicemail|mailbox)",
    r"(?:niet|even niet) _(?:bereikbaar|aanwezig|thuis|opnemen|beschikbaar)",
)
_NOT_THERE = _any(
    r"(?:person|party|customer|subscriber|number|caller) (?:that )?(?:you |s )_"
    r"(?:not available|unavailable|cannot be reached|not reachable|unreachable|not answering)",
    r"(?:teilnehmer\w*|gesprachspartner\w*|anschluss|person|rufnummer) _(?:zurzeit |momentan |"
    r"vorubergehend |derzeit |zur zeit |leider |im moment )*(?:nicht (?:zu )?erreich\w*|"
    r"nicht verfugbar)",
    r"(?:correspondant|abonne|numero) _(?:pas (?:joignable|disponible)|ne (?:peut|repond))",
    r"(?:numero|abonado|cliente|telefono|persona) _(?:no (?:esta|se encuentra) disponible|"
    r"no disponible|no puede)",
    r"(?:utente|cliente|numero|persona) _non (?:e )?(?:al momento )?(?:raggiungibile|disponibile)",
    r"(?:persoon|nummer|abonnee) _(?:niet (?:bereikbaar|beschikbaar))",
    r"(?:numero|cliente|assinante|pessoa) _(?:nao (?:esta|se encontra) disponivel|indisponivel)",
)
"""What announcements say of whoever was called: a message can perhaps be left, which they say
next."""
_UNAVAILABLE = _any(
    r"not in service",
    r"(?:number|line) _(?:has been|is|was) (?:disconnected|changed|invalid|no longer|not assigned|"
    r"out of (?:service|order)|unallocated|not recogni[sz]ed|unobtainable)",
    r"(?:cannot|can ?t|can not|could not|couldn t) be (?:completed|connected)",
    r"(?:is|are) (?:temporarily |currently )?(?:switched off|turned off|"
    r"out of (?:coverage|reach|the coverage))",
    r"(?:check|verify) the number (?:and|you)",
    r"hang up and (?:try|dial)",
    r"(?:please )?try (?:your call )?again later",
    r"all circuits are busy",
    r"not accepting calls",
    r"(?:nummer|anschluss|rufnummer) _nicht (?:vergeben|geschaltet|bekannt)",
    r"kein anschluss unter dieser",
    r"(?:versuchen sie es|rufen sie) _spater",
    r"(?:numero|correspondant) _(?:n est pas attribue|n est plus attribue|"
    r"n est plus en service|non attribue)",
    r"(?:veuillez|merci de) (?:rappeler|renouveler|reessayer|appeler) _(?:ulterieurement|plus tard|"
    r"appel)",
    r"(?:numero|telefono) _(?:no existe|apagado|fuera de (?:cobertura|servicio)|no esta en servicio"
    r"|no corresponde)",
    r"(?:intentelo|llame|vuelva a (?:intentarlo|llamar)) _(?:mas tarde|de nuevo)",
    r"(?:numero|utente|cliente|telefono) _(?:inesistente|non (?:e )?(?:attivo|esiste)|spento)",
    r"(?:si prega di|la preghiamo di|la invitiamo a) (?:riprovare|richiamare)",
    r"(?:nummer|abonnee) _(?:niet in gebruik|niet (?:meer )?aangesloten|buiten gebruik|"
    r"bestaat niet)",
    r"(?:probeer|belt u|bel) (?:het |u )?(?:later|op een later)",
    r"numero _(?:nao (?:esta|se encontra) (?:atribuido|em servico)|nao existe|desligado)",
    r"(?:tente|ligue) (?:de novo |novamente |outra vez )?mais tarde",
)
_HUMAN = _any(
    r"(?:who is|who s|whos|who am i) (?:\S+ ){0,2}(?:this|there|that|calling|it|with|to|please)$",
    r"speaking$",
    r"(?:^| )(?:hello|hallo|allo|hola|pronto|digame|diga|hi|yes|yeah|yep|ja|oui|si|hoi|bueno|hey|"
    r"ola|alo|estou|sim|moin|servus)$",
    r"good (?:morning|afternoon|evening|day)$",
    r"(?:guten (?:morgen|tag|abend)|gruss gott|gruezi)$",
    r"(?:bonjour|bonsoir)$",
    r"(?:buenos dias|buenas(?: tardes| noches)?)$",
    r"(?:buongiorno|buonasera)$",
    r"goede(?:morgen|middag|navond)$",
    r"(?:bom dia|boa tarde|boa noite)$",
    r"(?:wer|mit wem) (?:ist|spricht|spreche) (?:\S+ ){0,3}(?:da|dort|bitte|ich|apparat)$",
    r"(?:qui est|c est qui|de la part de qui|a quel sujet)(?: \S+){0,3}$",
    r"(?:quien|de parte de quien)(?: \S+){0,2}$",
    r"(?:chi parla|con chi parlo|chi e)(?: \S+){0,2}$",
    r"(?:met wie|wie is dat|wie spreek ik)(?: \S+){0,2}$",
    r"(?:quem (?:fala|e|esta)|com quem falo)(?: \S+){0,2}$",
)
_ASKS = _any(
    r"how (?:may|can|could) (?:i|we) (?:help|assist|direct)",
    r"what can (?:i|we) do for you",
    r"this is (?:\S+ ){1,2}speaking",
    r"(?:wie|womit) (?:kann|darf) ich (?:ihnen |dir )?(?:helfen|weiterhelfen|behilflich)",
    r"was (?:kann|darf) ich fur (?:sie|dich) tun",
    r"(?:mein name ist|sie sprechen mit) \S+",
    r"am apparat",
    r"(?:que|comment) (?:puis je|pouvons nous) _(?:aider|renseigner|faire)",
    r"je vous ecoute",
    r"a l appareil",
    r"(?:en que|como) (?:puedo|podemos|le puedo|te puedo) (?:ayudar|atender|servir)\w*",
    r"le (?:atiende|habla) \S+",
    r"(?:come|in cosa|cosa) (?:posso|possiamo) (?:aiutar\w*|esser\w* utile|fare)",
    r"mi dica",
    r"(?:waarmee|hoe|wat|waar) kan ik (?:u|je|voor) _(?:helpen|doen|van dienst)",
    r"(?:u )?spreekt met (?!de (?:voicemail|mailbox))\S+",
    r"zegt u het maar",
    r"(?:em que|como) (?:posso|podemos) (?:ajudar|ser util)\w*",
    r"(?:what|how) (?:would|do) you (?:like|want|need)",
    r"which (?:department|extension|number|name) (?:would|do|are)",
    r"(?:can|could|will) you hold",
    r"(?:was|wie|mit wem|womit) _(?:fur sie tun|ihnen|sie verbinden|dienen)",
    r"(?:que desea|que desean|vuole prenotare|cosa desidera|que desirez vous|o que deseja)",
)
"""What a person says who expects an answer: it decides before the end of the sentence."""
_NOT_SPOKEN = re.compile(r"[^a-z0-9]+")


@lru_cache(maxsize=64)
def plain(text: str) -> str:
    """Return a text in the letters a to z and digits, with one space between words.

    >>> plain("Après le bip, s'il vous plaît!")
    'apres le bip s il vous plait'
    """
    letters = unicodedata.normalize("NFKD", text[-MAX_CHARS:].casefold())
    return _NOT_SPOKEN.sub(" ", "".join(c for c in letters if not unicodedata.combining(c))).strip()


def heard_in(text: str) -> Heard | None:
    """Return what the words so far say of who speaks them; None if nothing."""
    words = plain(text)
    if found := _SCREENING.search(words):
        return Heard("screening", found[0], certain=True)
    if (found := _MACHINE.search(words)) and not _QUESTIONS.search(words):
        return Heard("machine", found[0], certain=True, invites=True)
    if found := _MENU.search(words):
        return Heard("menu", found[0], certain=True)
    if found := _UNAVAILABLE.search(words):
        return Heard("unavailable", found[0], certain=True)
    if found := _NOT_THERE.search(words):
        return Heard("machine", found[0], certain=True)
    if found := _ASKS.search(words):
        return Heard("human", found[0], certain=True)
    if found := _HUMAN.search(words):
        return Heard("human", found[0], certain=False)
    if found := _MAYBE_MACHINE.search(words):
        return Heard("machine", found[0], certain=False)
    return None
