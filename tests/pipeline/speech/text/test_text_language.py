"""The language of a text, as short as agents write."""

import time

import pytest

from offhook.pipeline.speech.text.text_language import language_of

SUPPORTED = ("zh", "en", "ja", "ko", "de", "fr", "ru", "pt", "es", "it")
"""What Qwen3-TTS speaks."""
TEXTS = {
    "en": [
        "Hello, how can I help you?",
        "Good morning.",
        "Your appointment is on Friday.",
        "Yes, of course.",
        "Thank you!",
        "I'm sorry, I didn't get that.",
        "What time is it?",
        "The doctor will call you back.",
        "It costs $5.",
        "Please hold the line.",
    ],
    "de": [
        "Hallo, wie kann ich Ihnen helfen?",
        "Guten Morgen.",
        "Ihr Termin ist am Freitag.",
        "Ja, natürlich.",
        "Vielen Dank!",
        "Das habe ich leider nicht verstanden.",
        "Wie spät ist es?",
        "Der Arzt ruft Sie zurück.",
        "Einen Moment, bitte.",
        "Bitte bleiben Sie dran.",
    ],
    "es": [
        "Hola, ¿en qué puedo ayudarle?",
        "Buenos días.",
        "Su cita es el viernes.",
        "Sí, por supuesto.",
        "¡Muchas gracias!",
        "Lo siento, no le he entendido.",
        "¿Qué hora es?",
        "El médico le devolverá la llamada.",
        "Vale, perfecto.",
        "Por favor, espere un momento.",
    ],
    "fr": [
        "Bonjour, comment puis-je vous aider ?",
        "Bonne journée.",
        "Votre rendez-vous est vendredi.",
        "Oui, bien sûr.",
        "Merci beaucoup !",
        "Désolé, je n'ai pas compris.",
        "Quelle heure est-il ?",
        "Le médecin vous rappellera.",
        "D'accord, parfait.",
        "Veuillez patienter.",
    ],
    "it": [
        "Ciao, come posso aiutarla?",
        "Buongiorno.",
        "Il suo appuntamento è venerdì.",
        "Sì, certamente.",
        "Grazie mille!",
        "Mi dispiace, non ho capito.",
        "Che ore sono?",
        "Il medico la richiamerà.",
        "Va bene, perfetto.",
        "Resti in linea, per favore.",
    ],
    "pt": [
        "Olá, como posso ajudar?",
        "Bom dia.",
        "A sua consulta é na sexta-feira.",
        "Sim, claro.",
        "Muito obrigado!",
        "Desculpe, não percebi.",
        "Que horas são?",
        "O médico vai ligar de volta.",
        "Está bem, ótimo.",
        "Aguarde um momento, por favor.",
    ],
    "ru": ["Здравствуйте, чем могу помочь?", "Да, конечно.", "Спасибо!", "Врач вам перезвонит."],
    "ko": ["안녕하세요, 무엇을 도와드릴까요?", "네, 물론이죠.", "감사합니다!", "지금 몇 시예요?"],
    "ja": ["こんにちは。", "はい、もちろんです。", "今何時ですか。", "東京都内交通情報です。"],
    "zh": ["您好，请问有什么可以帮您？", "早上好。", "谢谢！", "請稍等一下。", "我用Python写的。"],
}


def wrong(texts: dict[str, list[str]]) -> list[tuple[str, str, str]]:
    found = [
        (language, language_of(text, SUPPORTED), text)
        for language, some in texts.items()
        for text in some
    ]
    return [(language, guess, text) for language, guess, text in found if guess != language]


def test_sentences() -> None:
    assert len(wrong(TEXTS)) <= 2, wrong(TEXTS)


def test_two_words() -> None:
    short = {language: [" ".join(t.split()[:2]) for t in some] for language, some in TEXTS.items()}
    assert len(wrong(short)) <= 5, wrong(short)


@pytest.mark.parametrize("text", ["", "123", "😀 !!", "$5 + 3", "http://ciao.it"])
def test_nothing_known_is_english(text: str) -> None:
    assert language_of(text, SUPPORTED) == "en"


def test_only_supported_languages() -> None:
    assert language_of("Hallo, wie kann ich Ihnen helfen?", ("en", "fr")) in ("en", "fr")
    assert language_of("谢谢！", ("en",)) == "en"
    assert language_of("Dzień dobry, w czym mogę pomóc?", SUPPORTED) in SUPPORTED
    assert language_of("Hello", ()) == "en"
    assert language_of("Привет, Bob", ("ru", "de")) == "ru"


def test_a_name_in_another_script_does_not_decide() -> None:
    assert language_of("The city is called 東京 in Japanese, as you may know.", SUPPORTED) == "en"
    assert language_of("Москва (Moscow) is large and very cold in winter", SUPPORTED) == "en"


@pytest.mark.slow
def test_soon() -> None:
    language_of("once", SUPPORTED)
    begin = time.thread_time()
    for _ in range(200):
        language_of("Your appointment is on Friday.", SUPPORTED)
    assert (time.thread_time() - begin) / 200 < 0.001
