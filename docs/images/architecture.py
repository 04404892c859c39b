"""The pictures of the documents, each in a light and a dark version, beside this file."""

from pathlib import Path

INK = {
    "light": {"text": "#1f2328", "soft": "#59636e", "line": "#8c959f", "box": "#ffffff",
              "edge": "#eef6f1", "accent": "#1a7f50", "worker": "#fdf3e7", "warm": "#b35900"},
    "dark": {"text": "#e6edf3", "soft": "#9198a1", "line": "#6e7681", "box": "#161b22",
             "edge": "#12261d", "accent": "#3fb27f", "worker": "#2b1f12", "warm": "#e09b50"},
}  # fmt: skip
WIDTH, HEIGHT = 960, 400
CELL_HEIGHT = 300


def text(x: float, y: float, words: str, ink: str, size: int = 14, weight: int = 400) -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{ink}" font-size="{size}" font-weight="{weight}"'
        f' text-anchor="middle">{words}</text>'
    )


def box(x: int, y: int, w: int, h: int, fill: str, line: str, title: str, *rest: str) -> str:
    """A box with a title and lines; the last two of `rest` are the inks of both."""
    *lines, ink, soft = rest
    first = y + h / 2 + 5 - 9 * len(lines)
    parts = [
        f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="{fill}" stroke="{line}"/>',
        text(x + w / 2, first, title, ink, 15, 600),
    ]
    parts += [text(x + w / 2, first + 18 * (1 + n), t, soft, 12) for n, t in enumerate(lines)]
    return "".join(parts)


def arrow(x1: int, y1: int, x2: int, y2: int, ink: str) -> str:
    ends = 'marker-start="url(#a)" marker-end="url(#a)"'
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{ink}" stroke-width="1.5" {ends}/>'
    )


def begun(height: int, title: str, ink: dict[str, str]) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        ' font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">',
        f"<title>{title}</title>",
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        f' orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{ink["line"]}"/>',
        "</marker></defs>",
    ]


def picture(ink: dict[str, str]) -> str:
    both = (ink["text"], ink["soft"])
    near, warm = (ink["box"], ink["line"]), (ink["worker"], ink["warm"])
    parts = [
        *begun(HEIGHT, "Browsers, phones, carriers and programs reach an edge; speech engines run"
               " in it, in workers or elsewhere", ink),
        box(10, 20, 180, 72, *near, "Browsers", "WebRTC, RTVI", *both),
        box(10, 112, 180, 72, *near, "Phones", "SIP, RTP, SRTP", *both),
        box(10, 204, 180, 72, *near, "Carriers", "Twilio and its kin", *both),
        box(10, 308, 180, 72, *near, "Programs", "OpenAI audio API", "WebSockets", *both),
        f'<rect x="290" y="10" width="390" height="380" rx="10" fill="{ink["edge"]}"'
        f' stroke="{ink["accent"]}" stroke-width="1.5"/>',
        text(485, 36, "offhook serve: an edge", ink["accent"], 15, 600),
        box(310, 52, 160, 222, *near, "Media", "jitter buffer", "Opus, G.722, G.711",
            "FEC, concealment", "playout that knows", "what was heard", "a tick every 20 ms",
            *both),
        box(500, 52, 160, 62, *near, "Turn-taking", "Silero VAD, Smart Turn", *both),
        box(500, 132, 160, 62, *near, "Agent", "a Pipecat pipeline", *both),
        box(500, 212, 160, 62, *near, "CPU engines", "PocketSphinx, Flite", *both),
        box(310, 312, 350, 62, *near, "Speech API", "transcriptions, speech, realtime", *both),
        box(770, 52, 180, 62, *warm, "ASR worker", "Qwen3-ASR, Nemotron", *both),
        box(770, 132, 180, 62, *near, "Language model", "any OpenAI-compatible", *both),
        box(770, 212, 180, 62, *warm, "TTS worker", "Qwen3-TTS", *both),
        box(770, 312, 180, 62, *near, "Engines elsewhere", "vLLM, speaches, OpenAI, …", *both),
    ]  # fmt: skip
    line = ink["line"]
    parts += [arrow(195, y, 285, y, line) for y in (56, 148, 240, 344)]
    parts += [arrow(474, 163, 496, 163, line)]
    parts += [arrow(685, y, 765, y, line) for y in (83, 163, 243, 343)]
    return "".join(parts) + "</svg>\n"


def cell(ink: dict[str, str]) -> str:
    both = (ink["text"], ink["soft"])
    near, warm = (ink["box"], ink["line"]), (ink["worker"], ink["warm"])
    green = (ink["edge"], ink["accent"])
    parts = [
        *begun(CELL_HEIGHT, "A cell: two Kamailios and a balancer in front of edges, which choose"
               " among recognition and voice workers themselves; Redis beside them", ink),
        f'<rect x="215" y="10" width="735" height="280" rx="10" fill="none"'
        f' stroke="{ink["line"]}" stroke-dasharray="6 5"/>',
        text(582, 34, "a cell: at most 12,500 calls", ink["soft"], 14, 600),
        box(10, 60, 150, 62, *near, "Phones", "SIP", *both),
        box(10, 190, 150, 62, *near, "Browsers", "and carriers, by HTTPS", *both),
        box(235, 60, 150, 62, *near, "Kamailio, two", "signalling only", *both),
        box(235, 190, 150, 62, *near, "HTTP balancer", "signalling only", *both),
        box(455, 60, 180, 110, *green, "Edges", "27 calls a process", "sound, turns, agent",
            "choose workers", *both),
        box(455, 205, 180, 62, *near, "Redis", "2 kB a call", *both),
        box(730, 60, 200, 62, *warm, "ASR workers", "a GPU each, or cores", *both),
        box(730, 142, 200, 62, *warm, "TTS workers", "a GPU each, or cores", *both),
        box(730, 218, 200, 56, *near, "List of workers", "DNS, Ray, or by hand",
            *both),
    ]  # fmt: skip
    line = ink["line"]
    parts += [arrow(163, y, 232, y, line) for y in (91, 221)]
    parts += [arrow(388, 91, 452, 91, line), arrow(388, 215, 452, 150, line)]
    parts += [arrow(638, 91, 727, 91, line), arrow(638, 145, 727, 168, line)]
    parts += [arrow(545, 173, 545, 202, line)]
    return "".join(parts) + "</svg>\n"


PICTURES = {"architecture": picture, "cell": cell}


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        for look, ink in INK.items():
            (Path(__file__).parent / f"{name}-{look}.svg").write_text(draw(ink))
