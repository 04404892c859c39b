"""A second set of what people and machines say, in words and languages that chose nothing."""

HELLOS = {
    "en": (
        "Hey.",
        "Good evening.",
        "Yeah?",
        "Who is it?",
        "Six four two, one nine oh.",
        "Johnson residence.",
        "Hello, hello?",
        "Hello, this is the Patel household.",
        "Hi, this is John speaking, how can I help?",
        "Uh, hello, sorry, I was just in the garden, who's calling please?",
        "Hello. Sorry, just a second, I have to close the window.",
        "Hello, you're speaking to Margaret, good afternoon.",
        "Yes, good morning, who am I speaking with?",
        "Mum's in the shower, who's that?",
        "Hi, I'm in a meeting, I'll call you back.",
        "She can't come to the phone right now, I can give her a message.",
    ),
    "de": (
        "Ja?",
        "Moin.",
        "Grüß Gott, Huber.",
        "Wer ist da?",
        "Hallo, wer spricht denn da bitte?",
        "Bei Familie Wagner, Tobias am Telefon.",
        "Ja, guten Abend, hier ist die Petra Lindner.",
        "Schmidt GmbH, guten Tag, Sie sprechen mit Frau Becker.",
        "Ich bin gerade im Auto, ich rufe gleich zurück.",
        "Moment bitte, ich mache nur kurz das Radio leiser. So, hallo?",
    ),
    "fr": (
        "Allô, oui, bonsoir ?",
        "C'est qui ?",
        "Je ne peux pas vous répondre maintenant, je vous rappelle rapidement.",
        "Oui, c'est Lucie.",
        "Allô, qui est à l'appareil ?",
        "Famille Bernard, bonsoir.",
        "Oui bonjour, excusez-moi, j'étais dans la cuisine, c'est de la part de qui ?",
    ),
    "es": (
        "¿Aló?",
        "¿Quién es?",
        "Ahora no puedo contestar, estoy trabajando.",
        "Buenas tardes.",
        "Sí, dígame, ¿quién llama?",
        "Hola, buenas, habla Carmen.",
        "Sí, hola, perdone, estaba en la cocina, ¿de parte de quién?",
    ),
    "it": (
        "Sì, chi è?",
        "Buonasera.",
        "Casa Ferrari.",
        "Adesso non posso rispondere, sono in riunione.",
        "Pronto, buongiorno, sono Giulia.",
        "Pronto, mi scusi, ero in giardino, con chi parlo?",
    ),
    "pt": (
        "Alô?",
        "Estou?",
        "Sim, quem fala?",
        "Boa tarde.",
        "Olá, daqui fala a Inês.",
        "Sim, bom dia, desculpe, estava na cozinha, quem está a falar?",
    ),
}
FIRMS = {
    "en": (
        "Riverside Plumbing, Dave here, what's the problem?",
        "Reception, good morning, which department would you like?",
        "Hotel Astoria, front desk, this is Naomi, good evening, may I have your name?",
        "Doctor Singh's surgery, can you hold for a moment please?",
        "Pizza Roma, pick up or delivery?",
    ),
    "de": (
        "Bäckerei Sommer, guten Morgen.",
        "Rechtsanwälte Krüger und Partner, Sie sprechen mit Frau Adam, guten Tag.",
        "Hotel Seeblick, mein Name ist Jens Vogt, wie kann ich Ihnen weiterhelfen?",
        "Stadtverwaltung, Zentrale, mit wem darf ich Sie verbinden?",
    ),
    "fr": (
        "Boulangerie Petit, bonjour.",
        "Hôtel de la Gare, Nadia à votre service, bonjour.",
        "Secrétariat du docteur Lambert, bonjour, c'est à quel sujet ?",
    ),
    "es": (
        "Taller Hermanos Ruiz, buenas tardes, ¿qué desea?",
        "Hotel Miramar, recepción, le habla Sofía, muy buenos días.",
        "Peluquería Ana, dígame.",
    ),
    "it": (
        "Farmacia Centrale, buongiorno, dica pure.",
        "Albergo Bellavista, sono Marco, in cosa posso esserle utile?",
        "Ristorante Da Gino, buonasera, vuole prenotare?",
    ),
    "pt": (
        "Oficina Silva, bom dia, em que posso ajudar?",
        "Clínica Santa Maria, fala a Teresa, boa tarde.",
        "Restaurante O Pescador, boa noite, deseja fazer uma reserva?",
    ),
}
VOICEMAIL = {
    "en": (
        "Hi, it's Bob, leave one.",
        "This is Karen. Beep's coming.",
        "Thanks for ringing the Hendersons. We're out enjoying the sunshine. Tell us who you are "
        "when you hear the beep and somebody will ring you back.",
        "The mobile phone you are calling is switched off. Please leave a message after the tone.",
        "Welcome to the voice mailbox of oh seven seven, one two three. To leave a message, speak "
        "now.",
        "Sorry I missed you. Drop me a text, or say what you want after the beep.",
        "You've reached the offices of Grant and Lowe. Our office hours are nine to five. Please "
        "leave us your name and number.",
    ),
    "de": (
        "Hi, hier ist Max, ihr wisst, wie es geht. Nachrichten nach dem Piep.",
        "Sie haben die Nummer von Familie Otto gewählt. Wir sind unterwegs. Sagen Sie uns nach dem "
        "Ton, was wir für Sie tun können.",
        "Willkommen bei Ihrer Mobilbox. Der Teilnehmer kann Ihren Anruf nicht entgegennehmen.",
        "Praxis Doktor Lang. Unsere Praxis ist zurzeit geschlossen. In dringenden Fällen wenden "
        "Sie sich an den Notdienst.",
    ),
    "fr": (
        "Salut, c'est Hugo, je suis pas là, parlez après le bip.",
        "Vous êtes sur la boîte vocale du zéro six, douze. Merci de laisser votre message.",
        "Nous sommes absents pour le moment. Dites-nous tout après le signal, on vous rappelle.",
    ),
    "es": (
        "Soy Diego, no estoy, ya sabes qué hacer después del pitido.",
        "El teléfono al que llama está apagado o fuera de cobertura. Deje un mensaje tras la "
        "señal.",
        "Ha llamado a la consulta del doctor Vega. En este momento estamos cerrados. Déjenos su "
        "nombre y su teléfono.",
    ),
    "it": (
        "Sono Luca, non ci sono, parlate dopo il bip.",
        "Avete chiamato la famiglia Conti. Siamo fuori casa, lasciateci un messaggio.",
        "Il cliente chiamato non è al momento raggiungibile. Se vuole, lasci un messaggio dopo il "
        "segnale.",
    ),
    "pt": (
        "Olá, é o Rui, agora não posso atender, deixe mensagem depois do sinal.",
        "Ligou para a caixa de correio de voz. Grave a sua mensagem após o sinal.",
        "De momento não estamos disponíveis. Por favor, deixe o seu nome e o seu contacto.",
    ),
}
MENUS = {
    "en": (
        "You're through to City Power. If you smell gas, press one now. For your bill, press two.",
        "Thanks for calling Meridian Air. Para español, oprima dos. Say what you are calling "
        "about, for example, change my flight.",
    ),
    "de": (
        "Willkommen beim Kundenservice. Bitte nennen Sie Ihr Anliegen, oder drücken Sie die Raute.",
        "Für Deutsch wählen Sie die Eins. For English, press two.",
    ),
    "fr": (
        "Bienvenue chez votre assurance. Si vous êtes déjà client, tapez un. Sinon, tapez deux.",
        "Pour parler à un conseiller, appuyez sur la touche étoile.",
    ),
    "es": (
        "Gracias por llamar al banco. Si ya es cliente, marque uno. De lo contrario, marque dos.",
    ),
    "it": ("Benvenuto in Trenitalia. Per acquistare un biglietto, digiti uno. Per altro, due.",),
    "pt": ("Bem-vindo à linha de apoio. Para faturas, prima um. Para avarias, marque dois.",),
}
SCREENING = {
    "en": (
        "Please say your name and why you are calling, and I'll find out if they can talk.",
        "Hello. The person you called is screening their calls. Tell me who you are and what this "
        "is about.",
    ),
    "de": ("Hallo. Sagen Sie bitte Ihren Namen und warum Sie anrufen. Ich frage nach.",),
    "fr": ("Bonjour. Dites votre nom et pourquoi vous appelez, je vérifie sa disponibilité.",),
    "es": ("Hola. Grabe su nombre y el motivo de la llamada, veré si está disponible.",),
    "it": ("Ciao. Dica il suo nome e perché chiama, e verifico se è disponibile.",),
    "pt": ("Olá. Diga o seu nome e o motivo da chamada, e vejo se a pessoa está disponível.",),
}
UNAVAILABLE = {
    "en": (
        "The customer you are calling is not available at present. Please try again later.",
        "The number you have called has not been recognised.",
        "Your call could not be connected. Please hang up.",
    ),
    "de": (
        "Diese Rufnummer ist uns nicht bekannt. Bitte rufen Sie die Auskunft an.",
        "Der von Ihnen gewünschte Gesprächspartner ist vorübergehend nicht erreichbar.",
    ),
    "fr": ("Le numéro composé n'est plus en service. Veuillez consulter l'annuaire.",),
    "es": ("Telefónica le informa que actualmente no existe ninguna línea con esta numeración.",),
    "it": ("Il numero da lei chiamato non è attivo.",),
    "pt": ("O número para o qual ligou não está atribuído.",),
}
