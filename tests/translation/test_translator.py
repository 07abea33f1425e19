"""Text to text: lines, sentences, directions and other results of a translator."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import dragoman
from dragoman.bundle import Bundle
from dragoman.config import PositionConfig, SearchConfig
from dragoman.errors import UserError
from dragoman.special import EOS, PAD
from dragoman.translation import translator as translator_module
from dragoman.translation.translator import Translator

CHINESE = ["好久不见。", "晚安。", "大家好！", "最近忙什么呢？"]
ENGLISH = ["Long time no see.", "Good night.", "Hello, everyone!"]
GREEDY = SearchConfig(kind="greedy", max_length_a=1.0, max_length_b=3)


def texts(translator: Translator, lines: list[str], direction: str = "zh_en") -> list[str]:
    return [result.text for result in translator.translate(lines, GREEDY, direction=direction)]


def test_every_line_has_its_translation_in_order(translator: Translator) -> None:
    assert texts(translator, CHINESE[:3]) == ENGLISH
    assert texts(translator, [*CHINESE, "", *CHINESE[::-1]])[5:] == texts(translator, CHINESE)[::-1]


def test_sentences_are_joined_as_the_target_is_written(translator: Translator) -> None:
    (zh1, zh2, zh3), (en1, en2, en3) = CHINESE[:3], ENGLISH
    for line, direction, expected in (
        (f"{zh1}{zh2}", "zh_en", f"{en1} {en2}"),
        (f"{zh1}\u3000{zh2}", "zh_en", f"{en1} {en2}"),
        (f"{zh1}\n\n{zh2}{zh3}", "zh_en", f"{en1}\n\n{en2} {en3}"),
        (f"{zh1}\n- {zh2}\n2. {zh3}", "zh_en", f"{en1}\n- {en2}\n2. {en3}"),
        (f"  {zh2}\n——\n{zh3} ", "zh_en", f"{en2}\n——\n{en3}"),
        (f"{en2} {en3}", "en_zh", f"{zh2}{zh3}"),
    ):
        assert texts(translator, [line], direction) == [expected]


def test_the_sentences_of_a_line_add_up(translator: Translator) -> None:
    parts = [translator.translate([line])[0].hypotheses[0] for line in CHINESE[:2]]
    whole = translator.translate(["".join(CHINESE[:2])])[0].hypotheses[0]
    assert whole.score == pytest.approx(sum(part.score for part in parts), abs=1e-4)
    assert whole.tokens == parts[0].tokens + parts[1].tokens
    assert whole.tokens[-1] == "</s>"
    assert len(whole.tokens) == len(whole.token_scores)


def test_an_unusually_long_sentence_is_split_and_has_a_warning(translator: Translator) -> None:
    length = max(len(translator.bundle.src_tokenizer.encode(line)) for line in CHINESE[:2])
    short = Translator(dataclasses.replace(translator.bundle, meta={"usual_length": length}))
    line = f"{CHINESE[0][:-1]} {CHINESE[1]}"
    (result,) = short.translate([line], GREEDY)
    assert result.warnings[-1] == "unusual length: longer than nearly all training sentences"
    assert result.text == " ".join(texts(short, [CHINESE[0][:-1], CHINESE[1]], "zh_en"))


def test_symbols_list_marks_and_addresses_are_copied(translator: Translator) -> None:
    (zh1, zh2, _), (en1, en2, _) = CHINESE[:3], ENGLISH
    lines = [f"{zh1}👍{zh2}", f"{zh1[:-1]}👍🏽❤️{zh1[-1]}", f"👍 {zh1}"]
    expected = [f"{en1} 👍 {en2}", f"{en1} 👍🏽❤️", f"👍 {en1}"]
    for mark, plain in (("2、", "2."), ("12. ", "12."), ("• ", "•"), ("１．", "1.")):
        lines.append(mark + zh1)
        expected.append(f"{plain} {en1}")
    for address in ("https://a.org/b?c=1", "www.a.org", "a.b@c.org"):
        lines.append(f"{zh1}{address}。")
        expected.append(f"{en1} {address}.")
    results = translator.translate(lines, GREEDY, direction="zh_en")
    assert [result.text for result in results] == expected
    assert not any(result.warnings for result in results)


def test_full_width_forms_and_capitals_are_read_as_plain_ones(translator: Translator) -> None:
    plain, wide = "a good day", "ａ ｇｏｏｄ ｄａｙ"
    assert texts(translator, [wide], "en_zh") == texts(translator, [plain], "en_zh")
    assert texts(translator, [ENGLISH[0].upper()], "en_zh") == texts(translator, [ENGLISH[0]], "en_zh")
    assert texts(translator, ["I don’t"], "en_zh") == texts(translator, ["I don't"], "en_zh")


def test_one_text_is_not_a_list_of_lines(translator: Translator) -> None:
    with pytest.raises(UserError, match=r"Write translate\(\[text\]\)"):
        translator.translate(CHINESE[0])


def test_n_best_are_sorted_and_the_first_is_the_text(translator: Translator) -> None:
    search = SearchConfig(beam_size=4, n_best=3, max_length_b=5)
    for result in translator.translate([CHINESE[0], "".join(CHINESE[:3])], search):
        scores = [hypothesis.score for hypothesis in result.hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert result.text == result.hypotheses[0].text
        assert len({tuple(hypothesis.tokens) for hypothesis in result.hypotheses}) == len(scores) == 3


def test_lines_without_words_are_blank_or_copied(translator: Translator) -> None:
    blank = ["", " ", "\t", "\u3000", "\n", "\ufeff", "\x00"]
    assert texts(translator, blank) == [""] * len(blank)
    copied = ["😀", "👨‍👩‍👧 🎉", "——", "…", "!?", "¥%@#"]
    assert texts(translator, copied) == copied


@pytest.mark.parametrize("line", ["一" * 300 + "，" + "二" * 400, "word " * 300, "".join(CHINESE * 40)])
def test_long_lines_are_split_and_no_part_is_lost(line: str, golden: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = dataclasses.replace(golden, meta={"max_length": 24})
    short = Translator(bundle)
    rows: list[list[int]] = []  # the source ids that reach the encoder, without <EOS> and padding
    encode = short.model.encode

    def recording(src: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        rows.extend([id for id in row if id not in (PAD, EOS)] for row in src.tolist())
        return encode(src, mask)

    monkeypatch.setattr(short.model, "encode", recording)
    short.translate([line], dataclasses.replace(GREEDY, max_length_a=0.0), direction="zh_en")
    tag = short.bundle.src_tokenizer.tag("en")
    assert all(row[:1] == tag and len(row) <= 24 + 1 for row in rows)
    characters = sorted("".join(short.bundle.src_tokenizer.decode(row[1:]) for row in rows))
    assert [c for c in characters if c != " "] == sorted(line.replace(" ", ""))


def test_progress_counts_whole_lines(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(translator_module, "WINDOW", 4)
    lines = [*CHINESE, "", "".join(CHINESE)]
    list(translator.stream(lines, GREEDY, batch_tokens=16, progress=counts.append))
    assert counts == sorted(counts)
    assert counts[-1] == len(lines)
    assert len(counts) > 4


def test_unknown_directions_are_an_error(translator: Translator) -> None:
    with pytest.raises(UserError, match=r"direction=zh-en: choose one of zh_en, en_zh"):
        translator.translate(["好"], direction="zh-en")


def test_attention_has_a_piece_for_every_row_and_column(translator: Translator) -> None:
    result = translator.attend(CHINESE[1], ENGLISH[1])
    n_src, n_tgt = len(result.pieces["src"]), len(result.pieces["tgt_out"])
    assert {kind: tuple(weights.shape) for kind, weights in result.maps.items()} == {
        "encoder": (1, 2, n_src, n_src),
        "decoder": (1, 2, n_tgt, n_tgt),
        "cross": (1, 2, n_tgt, n_src),
    }
    assert result.pieces["tgt_in"] == ["<s>", *result.pieces["tgt_out"][:-1]]
    assert result.pieces["src"][0] == "<2en>"
    assert translator.attend(CHINESE[1], "a", direction="en_zh").pieces["src"][0] == "<2zh>"


def test_a_limit_of_positions_splits_sentences(shaped: Callable[..., Bundle]) -> None:
    bundle = dataclasses.replace(shaped(position=PositionConfig(kind="learned", length=16)), meta={"max_length": 14})
    short = Translator(bundle)
    long = "好你" * 40
    assert short.translate([long], GREEDY)[0].text
    assert short.embed([long]).isfinite().all()


def test_vectors_are_weighted_means_of_sentences(translator: Translator) -> None:
    first, second, both, blank = translator.embed([*CHINESE[:2], "".join(CHINESE[:2]), "……"])
    sizes = [len(translator.bundle.src_tokenizer.encode(line)) + 2 for line in CHINESE[:2]]
    assert torch.allclose(both, (first * sizes[0] + second * sizes[1]) / sum(sizes), atol=1e-5)
    assert not blank.any()
    assert translator.embed([], "first").shape == (0, 32)
    with pytest.raises(UserError, match="mean, first, attention"):
        translator.embed(iter([]), "median")


def test_the_direction_follows_the_script(translator: Translator) -> None:
    for lines, own, other in ((CHINESE[:3], "zh_en", "en_zh"), (ENGLISH, "en_zh", "zh_en")):
        result, vectors = translator.translate(lines), translator.embed(lines)
        attended = translator.attend(lines[0], "a")
        assert result == translator.translate(lines, direction=own)
        assert result != translator.translate(lines, direction=other)
        assert attended.pieces == translator.attend(lines[0], "a", direction=own).pieces
        assert attended.pieces != translator.attend(lines[0], "a", direction=other).pieces
        assert torch.equal(vectors, translator.embed(lines, direction=own))
    for line in ("", "123", "？ 7"):
        assert translator.translate([line], GREEDY) == translator.translate([line], GREEDY, direction="zh_en")


def test_a_stream_keeps_the_direction_of_its_first_window(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translator_module, "WINDOW", 2)
    lines = [*CHINESE[:2], ENGLISH[0]]
    assert [t.text for t in translator.stream(iter(lines), GREEDY)] == texts(translator, lines)


def test_the_public_names_are_importable(golden_folder: Path) -> None:
    assert set(dragoman.__all__) == {"Translation", "Translator", "UserError", "__version__"}
    translator = dragoman.Translator.load(golden_folder, "cpu")
    (result,) = translator.translate(["晚安。"])
    assert isinstance(result, dragoman.Translation)
    assert result.text == "Good night."
    with pytest.raises(dragoman.UserError, match="Name a run"):
        dragoman.Translator.load(golden_folder / "nowhere")
    with pytest.raises(UserError, match="auto, cpu, cuda"):
        dragoman.Translator.load(golden_folder, "tpu")
