"""Any text: as many lines out as in, in their order, none with a line break in it, whatever the characters are.

Between the strings stand marks that the translator copies (neither letter nor digit is in them): where each comes out
again the order was kept. How many strings went through is told at the end; ANY_TEXT=20 makes it twenty times as many.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dragoman import bundle as bundles
from dragoman.bundle import Bundle
from dragoman.export.ctranslate2 import export
from dragoman.search.search import SearchConfig
from dragoman.translator import Translator
from tiny import make_bundle

TIMES = int(os.environ.get("ANY_TEXT", "1"))
GREEDY = SearchConfig(kind="greedy", max_length_a=0.5, max_length_b=3)
SEARCHES = [
    GREEDY,
    SearchConfig(beam_size=2, n_best=2, max_length_b=3),
    SearchConfig(kind="sample", max_length_b=3),
]
SPECIAL = [
    *(
        "<s>",
        "</s>",
        "<unk>",
        "<pad>",
        "<BOS>",
        "<2en>",
        "<2zh>",
        "<0x0A>",
        "▁",
        "\\n",
        "%s",
        "${x}",
        "-",
        "--",
        "=1",
    ),
    *(
        "\0",
        "\n",
        "\r",
        "\r\n",
        "\t",
        "\x0b",
        "\x0c",
        "\x1b[2J",
        "\x1c",
        "\x85",
        "\u2028",
        "\u2029",
        "\ufeff",
        "\ufffe",
    ),
    *(
        "\u202e",
        "\u2066",
        "\u200b",
        "\u200d",
        "\u00ad",
        "\u0301",
        "\u3000",
        "\ue000",
        "\U000e0041",
        "\U0010ffff",
    ),
    *(
        "\ud800",
        "\udc80",
        "\udcff",
        "\udfff",
        "好",
        "a",
        "1",
        "。",
        ". ",
        "𠮷",
        "👩‍🚀",
        "نص",
        "हिन्दी",
        "각",
        "é",
        "ß",
        "\u0378",
    ),
]
CHARACTERS = st.text(st.characters(exclude_categories=()), max_size=30)  # surrogates and the unassigned too
TEXTS = st.one_of(
    CHARACTERS,
    st.lists(st.sampled_from(SPECIAL), max_size=12).map("".join),
    st.builds(str.__mul__, st.sampled_from(SPECIAL), st.integers(13, 400)),
    st.lists(CHARACTERS | st.sampled_from(SPECIAL), max_size=8).map("".join),
)
LINES = st.lists(TEXTS, max_size=12)
drawn = 0


@pytest.fixture(scope="module", autouse=True)
def told() -> Iterator[None]:
    yield
    print(f"\nstrings through Hypothesis: {drawn:,}")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return Translator(make_bundle(tmp_path_factory.mktemp("tokenizer"), both=True))


@pytest.fixture(scope="module", params=["torch", "ctranslate2"])
def one(
    request: pytest.FixtureRequest, tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> Translator:
    """By either engine; trained models have an export, which is then what translates."""
    if request.param == "torch":
        return Translator(tiny_bundle)
    pytest.importorskip("ctranslate2")
    folder = tmp_path_factory.mktemp("exported") / "bundle"
    bundles.save(tiny_bundle, folder)
    export(folder)
    translator = Translator.load(folder)
    assert translator.engine.name == "ctranslate2"
    return translator


def test_n_strings_in_n_strings_out_in_order(one: Translator, both: Translator) -> None:
    @settings(max_examples=40 * TIMES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(LINES, st.sampled_from(SEARCHES), st.booleans())
    def through(lines: list[str], search: SearchConfig, tagged: bool) -> None:
        found = (both if tagged else one).translate(between_marks(lines), search, direction="zh_en")
        assert len(found) == 2 * len(lines) + 1
        assert [translation.text for translation in found[::2]] == marks(len(lines) + 1)
        for translation in found:
            assert translation.text == translation.hypotheses[0].text
            for hypothesis in translation.hypotheses:
                hypothesis.text.encode()  # no lone surrogates
        count(lines)

    through()


def test_scores_vectors_and_directions_are_had_of_any_text(both: Translator) -> None:
    @settings(max_examples=20 * TIMES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(LINES)
    def through(lines: list[str]) -> None:
        short = [line[:60] for line in lines]  # no more can be scored
        assert all(score < 0 for score in both.score(short, short))
        vectors = both.embed(lines)
        assert vectors.shape[0] == len(lines)
        assert bool(vectors.isfinite().all())
        count(lines)

    through()


def test_the_command_line_answers_each_line_of_any_bytes(tiny_bundle_folder: Path) -> None:
    """Surrogates go in as the bytes that they would be in UTF-8, which are none: invalid input."""
    lines = gathered()
    sent = [part for text in lines for part in text.encode("utf-8", "surrogatepass").split(b"\n")]
    answers = translated(tiny_bundle_folder, stdin=b"\n".join(map(as_bytes, between_marks(sent))))
    assert len(answers) == 2 * len(sent) + 1
    assert answers[::2] == marks(len(sent) + 1)
    assert_no_line_breaks(answers)
    count(lines)


def test_each_argument_is_answered_in_one_line_whatever_it_holds(tiny_bundle_folder: Path) -> None:
    """What is no UTF-8 reaches Python as lone surrogates. NUL is the one character that no argument can hold."""
    lines = [text.replace("\0", "") for text in gathered()][
        :2000
    ]  # the system takes no more than two megabytes
    answers = translated(tiny_bundle_folder, "--", *map(as_bytes, between_marks(lines)))
    assert len(answers) == 2 * len(lines) + 1
    assert answers[::2] == marks(len(lines) + 1)
    assert_no_line_breaks(answers)
    count(lines)


def work(translator: Translator, text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """What a text costs: rows through the decoder, and the most numbers (rows x width) of one batch of sources."""
    rows, widest = 0, 0
    model = translator.bundle.model
    encode = model.encode

    def encoding(src, *args, **kwargs):  # type: ignore[no-untyped-def]
        nonlocal widest
        widest = max(widest, src.numel())
        return encode(src, *args, **kwargs)

    def decoding(_, args):  # type: ignore[no-untyped-def]
        nonlocal rows
        rows += len(args[0])

    hook = model.tgt_embedding.register_forward_pre_hook(decoding)
    with monkeypatch.context() as patch:
        patch.setattr(model, "encode", encoding)
        assert len(translator.translate([text], GREEDY, batch_tokens=2048)) == 1
    hook.remove()
    assert rows
    return rows, widest


@pytest.mark.parametrize("unit", ["好久不见。", "\u0301x", "1"])
@pytest.mark.parametrize("size", [10_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_the_work_grows_with_the_length_of_a_line_and_the_batch_does_not(
    unit: str, size: int, both: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, _ = work(both, unit * (1_000 // len(unit)), monkeypatch)
    large, widest = work(both, unit * (size // len(unit)), monkeypatch)
    assert widest <= 2048
    assert large <= 1.2 * small * size / 1_000


@pytest.mark.slow
def test_a_line_of_a_million_characters_takes_little_memory(tiny_bundle_folder: Path) -> None:
    line = "好久不见 hello 𠮷。".encode() * 80_000
    plain, long = (
        translated(
            tiny_bundle_folder,
            stdin=text + b"\n",
            told="import resource as r; print(r.getrusage(r.RUSAGE_SELF).ru_maxrss)",
        )
        for text in (b"\xe5\xa5\xbd", line)
    )
    assert len(plain) == len(long) == 2
    assert int(long[1]) - int(plain[1]) < 600_000  # KiB


def gathered() -> list[str]:
    """A hundred or two of Hypothesis's strings."""
    found: list[str] = []

    @settings(
        max_examples=30 * TIMES,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(LINES)
    def gather(lines: list[str]) -> None:
        found.extend(lines)

    gather()
    return found


def translated(bundle: Path, *arguments: bytes | str, stdin: bytes = b"", told: str = "") -> list[str]:
    """The lines that translate.py writes, in a process of its own; and what `told` prints after them."""
    script = Path(__file__).parents[1] / "translate.py"
    run = f"import runpy, sys; sys.argv[0] = 'translate.py'; runpy.run_path({str(script)!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", f"{run}; {told}", "--model", str(bundle), "--beam", "1", *arguments],
        input=stdin, capture_output=True, check=False, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().removesuffix("\n").split("\n")


def marks(n: int) -> list[str]:
    """★, ★★ ...: by threes, so that no line grows long."""
    return ["".join("★☆◆"[i // 3**power % 3] for power in range(8)) for i in range(n)]


def between_marks(lines: Sequence) -> list:
    every = marks(len(lines) + 1)
    return [item for pair in zip(every, lines, strict=False) for item in pair] + every[-1:]


def as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def assert_no_line_breaks(answers: list[str]) -> None:
    assert all(len(answer.splitlines()) <= 1 for answer in answers)


def count(lines: list[str]) -> None:
    global drawn
    drawn += len(lines)
