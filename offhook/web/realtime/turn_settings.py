"""Turn detection of a Realtime session as the settings of our own turn detection."""

from offhook.pipeline.conversation.turns.turn import TurnSettings
from offhook.web.realtime.protocol.conversation_session import (
    ConversationSemanticVad,
    ConversationVad,
    TurnDetection,
)

EAGERNESS = {
    "high": TurnSettings(
        end_answer=400,
        end_silence=200,
        end_silence_unsure=400,
        end_silence_open=400,
        end_silence_hesitant=500,
        answer_open=0,
        answer_hesitant=0,
        end_silence_listing=500,
        end_silence_dictating=700,
        end_silence_dangling=800,
        end_silence_searching=1500,
        end_silence_learned=500,
    ),
    "auto": TurnSettings(),
    "medium": TurnSettings(),
    "low": TurnSettings(
        ask_end_times=2,
        end_answer=1000,
        end_silence=500,
        end_silence_unsure=1500,
        end_silence_open=1000,
        end_silence_hesitant=1500,
        end_silence_listing=2000,
        end_silence_dictating=3000,
        end_silence_dangling=4000,
        end_silence_searching=4000,
    ),
}
"""The silences that end a turn by `eagerness`: the words and the end-of-turn model decide which."""
VOICE_INTERRUPTS_MS = 200
"""Speech over the agent that interrupts it with server_vad, whatever its words: most coughs are
shorter, or no speech to the detector."""
USUAL_SILENCE_MS = ConversationVad(type="server_vad").silence_duration_ms


def turn_settings(detection: TurnDetection | None, usual: TurnSettings) -> TurnSettings:
    """Returns the settings for `turn_detection`; `usual` where the client commits each turn. With
    server_vad, silence alone ends a turn, and voice alone interrupts the agent; but a client that
    has chosen no silence has no reason to cut off those who spell their name."""
    match detection:
        case ConversationSemanticVad(eagerness="auto" | "medium"):
            return usual
        case ConversationSemanticVad(eagerness=eagerness):
            return EAGERNESS[eagerness]
        case ConversationVad(silence_duration_ms=silence):
            patient = silence == USUAL_SILENCE_MS
            more = TurnSettings.end_silence_dictating if patient else silence
            return TurnSettings(
                ask_end_times=0,
                end_answer=silence,
                end_silence=silence,
                end_silence_unsure=silence,
                end_silence_open=silence,
                end_silence_hesitant=silence,
                answer_open=0,
                answer_hesitant=0,
                end_silence_listing=TurnSettings.end_silence_listing if patient else silence,
                end_silence_dictating=more,
                end_silence_dangling=more,
                end_silence_searching=TurnSettings.end_silence_searching if patient else silence,
                end_silence_learned=0,
                interrupt_speech=VOICE_INTERRUPTS_MS,
                interrupt_agreement=VOICE_INTERRUPTS_MS,
                finish_unsure_after=min(TurnSettings.finish_unsure_after, silence),
            )
    return usual
