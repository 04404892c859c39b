"""The times of a request, on a clock that the test turns."""

from offhook.web.speech_api.stages import STAGES, Stages


class Clock:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def marked(*marks: tuple[str, float]) -> Stages:
    """Stages with each mark at so many seconds after the beginning."""
    clock = Clock()
    stages = Stages(clock)
    for stage, at in marks:
        clock.at = 100.0 + at
        stages.mark(stage)  # type: ignore[arg-type]
    return stages


WHOLE = (
    *(("queued", 0.5), ("received", 0.75), ("loaded", 1.75), ("first", 2.0)),
    *(("inferred", 3.75), ("first_byte", 2.5), ("encoded", 4.0), ("done", 4.25)),
)


def test_each_stage_takes_from_what_it_waited_for_to_its_mark():
    assert marked(*WHOLE).headers() == {
        "X-Latency-Queue-Ms": "500.0",
        "X-Latency-Load-Ms": "1000.0",
        "X-Latency-Infer-Ms": "2000.0",
        "X-Latency-Encode-Ms": "250.0",
        "X-Latency-Total-Ms": "4250.0",
    }


def test_what_the_listener_feels_counts_from_the_beginning():
    told = marked(*WHOLE).as_dict()
    assert (told["first_ms"], told["first_byte_ms"], told["done_ms"]) == (2000, 2500, 4250)


def test_only_what_is_known_is_told():
    stages = marked(("queued", 0.5), ("loaded", 0.75))
    assert set(stages.headers()) == {
        "X-Latency-Queue-Ms",
        "X-Latency-Load-Ms",
        "X-Latency-Total-Ms",
    }
    assert stages.headers()["X-Latency-Total-Ms"] == "750.0"
    assert stages.seconds("inferred") is None
    assert list(stages.as_dict()) == ["queued_ms", "loaded_ms"]


def test_the_first_of_firsts_and_the_last_of_lasts_count():
    stages = marked(("first", 1.0), ("inferred", 2.0), ("first", 3.0), ("inferred", 4.0))
    assert (stages.seconds("first"), stages.seconds("inferred")) == (1.0, 4.0)


def test_no_order_of_marks_makes_a_time_negative():
    for marks in (STAGES, STAGES[::-1]):
        stages = marked(*((stage, 0.1 * at) for at, stage in enumerate(marks)))
        assert all(took >= 0 for took in stages.as_dict().values())
