"""What people and machines say when a call is answered, in six languages."""

HELLOS = {
    "en": ("Hello?", "Hello.", "Yes?", "Hi, Anna speaking.", "Tom Baker.", "Hello, who's this?"),
    "de": ("Hallo?", "Ja, bitte?", "Schneider.", "Ja, hallo?", "Müller, guten Tag."),
    "fr": ("Allô ?", "Oui, allô ?", "Bonjour.", "Oui ?", "Claire Martin, bonjour."),
    "es": ("¿Diga?", "¿Sí?", "Hola, dígame.", "¿Bueno?", "Hola, soy Marta."),
    "it": ("Pronto?", "Sì, pronto?", "Pronto, chi parla?", "Sì?"),
    "nl": ("Hallo?", "Met Jansen.", "Ja, hallo?", "Goedemorgen, met Els."),
}
FIRMS = {
    "en": (
        "Thank you for calling Baker and Sons, how may I help you?",
        "Good morning, Lakeside Dental, this is Rita speaking, how can I help?",
        "Corner Bookshop, good afternoon, what can I do for you?",
    ),
    "de": (
        "Autohaus Weber, guten Tag, mein Name ist Lena Koch, was kann ich für Sie tun?",
        "Praxis Doktor Brandt, wie kann ich Ihnen helfen?",
    ),
    "fr": (
        "Garage du Lac, bonjour, comment puis-je vous aider ?",
        "Cabinet Moreau, bonjour, je vous écoute.",
    ),
    "es": (
        "Ferretería Gómez, buenos días, ¿en qué puedo ayudarle?",
        "Clínica del Sol, le atiende Laura, ¿en qué puedo ayudarle?",
    ),
    "it": (
        "Officina Rossi, buongiorno, come posso aiutarla?",
        "Studio Bianchi, buonasera, mi dica.",
    ),
    "nl": (
        "Fietsenwinkel De Brug, goedemiddag, waarmee kan ik u helpen?",
        "Tandarts Visser, u spreekt met Anke, zegt u het maar.",
    ),
}
VOICEMAIL = {
    "en": (
        "Hi, this is Tom. I can't take your call right now. Leave your name and number and I'll "
        "call you back.",
        "Hey, it's Rita. You know what to do. Leave a message after the beep.",
        "You have reached the Baker family. We're not home right now, so please leave a message at "
        "the tone.",
        "Your call has been forwarded to an automated voice messaging system. At the tone, please "
        "record your message.",
        "The person you are trying to reach is not available. Please leave your message after the "
        "tone.",
    ),
    "de": (
        "Hallo, hier ist die Mailbox von Jonas Weber. Ich bin gerade nicht erreichbar. Bitte "
        "sprechen Sie nach dem Signalton.",
        "Guten Tag. Leider ist im Moment niemand da. Hinterlassen Sie eine Nachricht, wir rufen "
        "Sie zurück.",
        "Der gewünschte Teilnehmer ist momentan nicht erreichbar. Sie können nach dem Ton eine "
        "Nachricht hinterlassen.",
    ),
    "fr": (
        "Bonjour, vous êtes bien sur le répondeur de Claire. Je ne suis pas disponible, "
        "laissez-moi un message après le bip.",
        "Votre correspondant n'est pas disponible. Veuillez laisser un message après le signal "
        "sonore.",
    ),
    "es": (
        "Hola, has llamado a Marta. Ahora no puedo atenderte, deja tu mensaje después de la señal.",
        "Este es el buzón de voz del número marcado. Grabe su mensaje después del tono.",
    ),
    "it": (
        "Ciao, sono Paolo. In questo momento non posso rispondere, lasciate un messaggio dopo il "
        "segnale acustico.",
        "Risponde la segreteria telefonica. Lasci un messaggio dopo il bip.",
    ),
    "nl": (
        "Hoi, dit is de voicemail van Sanne. Ik kan nu even niet opnemen, spreek iets in na de "
        "piep.",
        "De persoon die u belt is niet bereikbaar. Spreek een bericht in na de toon.",
    ),
}
MENUS = {
    "en": (
        "Thank you for calling Northern Bank. For accounts, press one. For cards, press two.",
        "Welcome to the city library. Please listen carefully as our menu options have changed.",
    ),
    "de": (
        "Herzlich willkommen bei den Stadtwerken. Für Fragen zur Rechnung drücken Sie die Eins, "
        "für Störungen die Zwei.",
    ),
    "fr": (
        "Bienvenue au service client. Pour une commande, tapez un. Pour une facture, tapez deux.",
    ),
    "es": (
        "Bienvenido a la compañía del agua. Para averías, pulse uno. Para facturas, pulse dos.",
    ),
    "it": (
        "Benvenuti al servizio clienti. Per informazioni, premere uno. Per guasti, premere due.",
    ),
    "nl": ("Welkom bij de gemeente. Voor paspoorten, toets één. Voor belastingen, toets twee.",),
}
SCREENING = {
    "en": (
        "Hi. If you record your name and reason for calling, I'll see if this person is available.",
        "Hi, the person you're calling is using a screening service and will get a copy of this "
        "conversation. Go ahead and say your name, and why you're calling.",
    ),
    "de": ("Hallo. Bitte nennen Sie Ihren Namen und den Grund Ihres Anrufs.",),
    "fr": ("Bonjour. Indiquez votre nom et la raison de votre appel.",),
    "es": ("Hola. Diga su nombre y el motivo de su llamada.",),
    "it": ("Salve. Registri il suo nome e il motivo della chiamata.",),
    "nl": ("Hallo. Zeg uw naam en de reden van uw oproep.",),
}
UNAVAILABLE = {
    "en": (
        "The number you have dialed is not in service. Please check the number and dial again.",
        "We're sorry, your call cannot be completed as dialed.",
    ),
    "de": (
        "Kein Anschluss unter dieser Nummer.",
        "Die gewählte Rufnummer ist nicht vergeben.",
    ),
    "fr": ("Le numéro que vous avez demandé n'est pas attribué.",),
    "es": ("El número marcado no existe. Inténtelo de nuevo.",),
    "it": ("Il numero selezionato è inesistente.",),
    "nl": ("Dit nummer is niet in gebruik.",),
}
