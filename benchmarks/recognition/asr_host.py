"""`offhook bench asr_host`: what Python takes for an update of Qwen3-ASR, without a GPU.

The engine, its streams, the queue of the inference thread and the link to a front are the real
ones, and so is all that the runner writes into the buffers of a launch, at the sizes that are
captured on a GPU. Nothing is launched: tokens are scripted, and what the script takes is not
counted. All streams speak at once and get an update every 400 ms from messages of 80 ms. Columns:
streams in a batch; the utterance's length; updates measured; us of CPU time for each: of the
inference thread, of that the commands (audio) and the batches, and of the event loop.
`--profile` prints instead what the functions of a batch take.
"""

import cProfile
import gc
import pickle
import pstats
from collections.abc import Callable, Sequence
from queue import Empty
from time import thread_time
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor

from benchmarks.command import command
from benchmarks.table import Table
from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.qwen3_asr.engine import AsrEngine, TextUpdate
from offhook.pipeline.engines.qwen3_asr.model.checkpoint import random_model
from offhook.pipeline.engines.qwen3_asr.model.model import (
    AsrConfig,
    AsrDecoderConfig,
    EncoderConfig,
)
from offhook.pipeline.engines.qwen3_asr.passes import Pass, Verdict
from offhook.pipeline.engines.qwen3_asr.recognition import Recognition
from offhook.pipeline.engines.qwen3_asr.runner import (
    ROW_LADDER,
    SECOND_LADDER,
    SECOND_TOKENS,
    STREAM_LADDER,
    TOKEN_LADDER,
    WINDOW_TOKENS,
    Runner,
)
from offhook.pipeline.engines.qwen3_asr.scheduler import Cost
from offhook.pipeline.engines.shared.graphs import Ints, Size, Stage, _Host
from offhook.pipeline.engines.shared.process_link_io import ProcessLink
from offhook.pipeline.engines.shared.qwen3.tokenizer import SPLIT, Tokenizer
from offhook.pipeline.engines.shared.recognition.far_recognizer_io import (
    AudioFed,
    FromRecognizer,
    RecognizerDoor,
    ToRecognizer,
    UtteranceFinished,
    _FarListener,
)
from offhook.pipeline.engines.shared.recognition.streams_io import EngineRecognizer
from offhook.pipeline.speech.recognizer import Final, StreamOptions

CONFIG = AsrConfig(
    EncoderConfig(d_model=8, layers=1, heads=1, ffn=8, output_dim=8, mel_bins=8, conv_channels=2),
    AsrDecoderConfig(8, 8, layers=1, heads=1, kv_heads=1, head_dim=8),
)
UPDATE_MS, MESSAGE_MS = 400, 80
MESSAGE = MESSAGE_MS * RATE_IN // 1000
TOKENS_PER_S = 4.5
MEASURED_S = 0.8
"""Length of utterance on either side of the one reported over which updates are measured."""
MESSAGES_PER_BLOCK = 4
"""Messages of fronts that come together."""
PAGES_EACH = 12
MOST_TOKENS = 2 * TOKEN_LADDER[-1]
"""Of a launch: so that there are batches of 64 streams, whatever they said."""
FREE = Cost(0.0, 0.0, 0.0)
SCRIPTED = 1024
"""Tokens of a text."""
SURE, OTHER = 1000, 1000 + SCRIPTED
"""Ids of the tokens that stay, and of those that the next update changes."""
COLUMNS = "batch at_s updates inference_us commands_us batches_us loop_us final_us"


class ScriptedStage(Stage):
    """A stage whose integers are written and whose result comes from a script."""

    def __init__(self, of: Stage, sizes: Sequence[Size], script: Callable[[Any], Tensor]) -> None:
        cpu = torch.device("cpu")
        super().__init__(of.name, of._run, of._layout, sizes, cpu, uncleared=of._uncleared)
        self._script = script
        self._hosts: dict[Size, list[_Host]] = {}
        self._fields: dict[str, Ints] = {}
        self.scripted_s = 0.0

    def fields(self, size: Size) -> dict[str, Ints]:
        if size not in self._hosts:
            layout = self._layout(size)
            self._hosts[size] = [_Host(layout, False, self._uncleared) for _ in range(2)]
        hosts = self._hosts[size]
        hosts.reverse()
        hosts[0].clear()
        self._fields = hosts[0].fields
        return self._fields

    def launch(self, size: Size) -> Tensor:
        began = thread_time()
        out = self._script(self._fields)
        self.scripted_s += thread_time() - began
        return out


class ScriptedRunner(Runner):
    """A runner that launches nothing: texts grow with the audio, and their last token changes with
    each update."""

    def __init__(self, streams: int, tokenizer: Tokenizer) -> None:
        model = random_model(CONFIG, "cpu", torch.float32)
        super().__init__(model, streams, streams * PAGES_EACH + 1)
        self.eos_ids = frozenset((tokenizer.im_end,))
        self._header = [*tokenizer.encode("language English"), tokenizer.asr_text]
        self._tail = len(tokenizer.encode("\nassistant\n")) + 3
        self._end = tokenizer.im_end
        self._told = np.zeros((2, streams + 1), np.int64)  # accepted tokens and the next one
        self._rest = np.full((streams + 1, 64), self._end)  # what decoding would say after that
        self._decoded = np.zeros(streams + 1, np.int64)
        self._noise = np.random.default_rng(0)
        seconds = [Size(n) for n in SECOND_LADDER]
        tokens = [Size(n, max(2, n // 16)) for n in (*TOKEN_LADDER, MOST_TOKENS)]
        rows = [Size(n, min(n, STREAM_LADDER[-1])) for n in ROW_LADDER]
        nothing = torch.zeros(1)
        self.mel_stage = ScriptedStage(self.mel_stage, seconds, self._loudness)
        self.stem_stage = ScriptedStage(self.stem_stage, seconds, lambda f: nothing)
        self.encoder_stage = ScriptedStage(self.encoder_stage, tokens, lambda f: nothing)
        self.prefill_stage = ScriptedStage(self.prefill_stage, tokens, lambda f: nothing)
        self.verify_stage = ScriptedStage(self.verify_stage, rows, self._verdicts)
        steps = list(map(Size, STREAM_LADDER))
        self.decode_stage = ScriptedStage(self.decode_stage, steps, self._next_tokens)
        self._planned_s = 0.0

    @property
    def scripted_s(self) -> float:
        stages = (self.mel_stage, self.verify_stage, self.decode_stage)
        return self._planned_s + sum(s.scripted_s for s in stages if isinstance(s, ScriptedStage))

    def prefill(self, passes: Sequence[Pass]) -> Callable[[], list[Verdict]]:
        began = thread_time()
        for p in passes:
            self._plan(p)
        self._planned_s += thread_time() - began
        return super().prefill(passes)

    def _plan(self, p: Pass) -> None:
        heard = p.audio[-1].window * WINDOW_TOKENS + p.audio[-1].tokens
        said = int(heard / SECOND_TOKENS * TOKENS_PER_S)
        prompted = [*p.after, *p.draft][self._tail :]
        header = len(self._header)
        first = (prompted[header] - SURE) % SCRIPTED if len(prompted) > header else 0
        text = [SURE + i for i in range(first, said - 1)]
        text += [OTHER + said - 1] if said else []
        whole = [*self._header, *text, self._end]
        at = forced = len(prompted) - len(p.draft)
        while at < min(len(prompted), len(whole) - 1) and prompted[at] == whole[at]:
            at += 1
        self._told[:, p.slot] = at - forced, whole[min(at, len(whole) - 1)]
        rest = whole[at + 1 :][: self._rest.shape[1]]
        self._rest[p.slot] = self._end
        self._rest[p.slot, : len(rest)] = rest
        self._decoded[p.slot] = 0

    def _loudness(self, f: dict[str, Ints]) -> Tensor:
        return torch.from_numpy(self._noise.standard_normal(len(f["row"]), np.float32))

    def _verdicts(self, f: dict[str, Ints]) -> Tensor:
        return torch.from_numpy(self._told[:, f["slots"]])

    def _next_tokens(self, f: dict[str, Ints]) -> Tensor:
        slots = f["slots"]
        tokens = self._rest[slots, self._decoded[slots]]
        self._decoded[slots] += slots > 0
        return torch.from_numpy(tokens)


def word_tokenizer() -> Tokenizer:
    """Returns Qwen's tokenizer with words for its vocabulary: one for each scripted token."""
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for word in ("system", "user", "assistant", "language", "ĠEnglish"):
        vocabulary[word] = len(vocabulary)
    syllables = [a + b for a in "bdfghklmnprstvz" for b in "aeiou"]
    for number in range(2 * SCRIPTED):
        first, second = divmod(7919 * number % len(syllables) ** 2, len(syllables))
        vocabulary[f"Ġ{syllables[first]}{syllables[second]}"] = SURE + number
    bpe = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    cut = pre_tokenizers.Split(tokenizers.Regex(SPLIT), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([cut, to_bytes])
    bpe.decoder = decoders.ByteLevel()
    control = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>")
    bpe.add_special_tokens([*control, "<|audio_pad|>"])
    bpe.add_tokens(["<asr_text>"])
    return Tokenizer(bpe)


class Transport:
    """Takes what a link sends."""

    def write(self, data: bytes) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


class Loop:
    """An event loop whose callbacks run when asked."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    call_soon_threadsafe = call_soon

    def run(self) -> None:
        while self._callbacks:
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()


class Host:
    """The recognizer's process, whose two threads take turns in this one."""

    def __init__(self, streams: int, batch: int) -> None:
        tokenizer = word_tokenizer()
        self.runner = ScriptedRunner(streams, tokenizer)
        self.events = 0
        self.finals = 0
        self.commands_s = self.batches_s = self.loop_s = 0.0
        self._loop = Loop()
        self._link = ProcessLink.__new__(ProcessLink)
        self._link._out, self._link._in = [], bytearray()
        self._link._loop = self._loop  # type: ignore[assignment]
        self._link._transport = Transport()  # type: ignore[assignment]
        self._recognizer = EngineRecognizer("host", None)  # type: ignore[arg-type]
        self._inference = self._recognizer.inference
        self._inference._loop = self._loop  # type: ignore[assignment]
        most = (streams, 0, batch, MOST_TOKENS)

        def engine(tell: Callable[[TextUpdate], None]) -> AsrEngine:
            return AsrEngine(self.runner, tokenizer, self.runner.pages, FREE, *most, tell)

        def tell(number: int, event: Any) -> None:
            self.events += 1
            self.finals += isinstance(event, Final)
            self._inference.post((number, event))

        recognition = self._recognizer.engine = Recognition(tell, engine)
        self._turn = recognition.turn
        self._door = RecognizerDoor(self._recognizer, self._send)
        self._link._receive = self._door.receive
        for number in range(streams):
            self._open(number)

    def _send(self, said: FromRecognizer) -> None:
        self._link.send(said)

    def _open(self, number: int) -> None:
        own = self._recognizer.engine.open(StreamOptions(update_ms=UPDATE_MS))
        self._door._numbers[number] = own
        self._recognizer.listen(own, _FarListener(number, self._send))

    def receive(self, messages: Sequence[ToRecognizer]) -> None:
        """What comes from fronts, and what the inference thread then does before it looks for a
        batch."""
        for at in range(0, len(messages), MESSAGES_PER_BLOCK):
            block = pickle.dumps(list(messages[at : at + MESSAGES_PER_BLOCK]), 5)
            data = len(block).to_bytes(4, "little") + block
            began = thread_time()
            self._link.data_received(data)
            self.loop_s += thread_time() - began
        began = thread_time()
        try:
            while (command := self._inference._commands.get_nowait()) is not None:
                command()
        except Empty:
            pass
        self.commands_s += thread_time() - began

    def run(self, clock: Callable[[], float]) -> None:
        """Runs all batches that are due, and the event loop between them."""
        going = True
        while going:
            began, scripted_s = thread_time(), self.runner.scripted_s
            going = self._turn(clock)
            told = thread_time()
            self._loop.run()
            self.batches_s += told - began - (self.runner.scripted_s - scripted_s)
            self.loop_s += thread_time() - told

    def spent(self) -> tuple[float, float, float]:
        return self.commands_s, self.batches_s, self.loop_s


class Callers:
    """Streams that speak at once, in real time of a clock that they set."""

    def __init__(self, host: Host, streams: int) -> None:
        self._host = host
        self._streams = streams
        self._sound: Pcm = np.random.default_rng(1).integers(-3000, 3000, RATE_IN, np.int16)
        self.now = 0.0

    def speak(self, ms: int) -> None:
        for at in range(0, ms, MESSAGE_MS):
            begin = at * RATE_IN // 1000 % (RATE_IN - MESSAGE)
            audio = self._sound[begin : begin + MESSAGE].tobytes()
            self.now += MESSAGE_MS / 1000
            self._host.receive([AudioFed(n, audio, self.now) for n in range(self._streams)])
        self._host.run(lambda: self.now)

    def finish(self) -> None:
        self._host.receive([UtteranceFinished(n, self.now) for n in range(self._streams)])
        self._host.run(lambda: self.now)


def measure(streams: int, batch: int, lengths: Sequence[float], table: Table, repeats: int) -> None:
    host = Host(streams, batch)
    callers = Callers(host, streams)
    gc.collect()
    gc.freeze()
    rows: dict[float, list[list[float]]] = {at_s: [] for at_s in lengths}
    updates = 0
    for _ in range(repeats):
        for at_s in lengths:
            for _ in range(round(1000 * (at_s - MEASURED_S) / UPDATE_MS)):
                callers.speak(UPDATE_MS)
            before, updates = host.spent(), host.events
            for _ in range(round(2000 * MEASURED_S / UPDATE_MS)):
                callers.speak(UPDATE_MS)
            updates = host.events - updates
            took = [1e6 * (b - a) / updates for a, b in zip(before, host.spent(), strict=True)]
            before, finals = host.spent(), host.finals
            callers.finish()
            assert host.finals == finals + streams
            final = sum(b - a for a, b in zip(before, host.spent(), strict=True))
            rows[at_s].append([*took, 1e6 * final / streams])
    for at_s, found in rows.items():
        commands, batches, loop, final = np.median(found, axis=0).tolist()
        table.row(
            batch=batch,
            at_s=at_s,
            updates=updates * repeats,
            inference_us=commands + batches,
            commands_us=commands,
            batches_us=batches,
            loop_us=loop,
            final_us=final,
        )


def profile(streams: int, batch: int, at_s: float) -> None:
    host = Host(streams, batch)
    callers = Callers(host, streams)
    for _ in range(round(1000 * at_s / UPDATE_MS)):
        callers.speak(UPDATE_MS)
    profiler, events = cProfile.Profile(), host.events
    profiler.enable()
    for _ in range(round(2000 * MEASURED_S / UPDATE_MS)):
        callers.speak(UPDATE_MS)
    profiler.disable()
    print(f"{host.events - events} updates")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(60)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("asr_host", __doc__)
    parser.add_argument("--streams", type=int, default=128, help="all speaking (128)")
    parser.add_argument("--batches", default="8,32,64", metavar="N,…", help="(8,32,64)")
    parser.add_argument("--lengths", default="2,10,60", metavar="S,…", help="(2,10,60)")
    parser.add_argument("--repeats", type=int, default=1, help="the median counts (1)")
    parser.add_argument("--profile", action="store_true", help="the first batch and length")
    parser.add_argument("--json", action="store_true", help="a JSON line a row")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    batches = [int(batch) for batch in options.batches.split(",")]
    lengths = [float(length) for length in options.lengths.split(",")]
    if options.profile:
        profile(options.streams, batches[0], lengths[0])
        return 0
    note = f"{options.streams} streams, nothing launched, tokens scripted"
    table = Table("asr_host", note, COLUMNS, options.json)
    for batch in batches:
        measure(options.streams, batch, lengths, table, options.repeats)
    return 0
