import dataclasses
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.bundle import Bundle
from dragoman.engine import choose_device
from dragoman.errors import UserError
from dragoman.model.position import PositionConfig
from dragoman.model.transformer import Transformer
from dragoman.search.search import SearchConfig
from dragoman.special import BOS, EOS, PAD
from dragoman.torch_engine import translate_ids
from dragoman.translator import Translator
from tiny import SENTENCES, make_bundle

GREEDY = SearchConfig(kind="greedy", max_length_a=0.5, max_length_b=3)


@pytest.fixture(scope="module")
def translator(tiny_bundle: Bundle) -> Translator:
    return Translator(tiny_bundle)


@pytest.fixture(scope="module")
def into_chinese(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return Translator(make_bundle(tmp_path_factory.mktemp("tokenizer"), src="en", tgt="zh"))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return Translator(make_bundle(tmp_path_factory.mktemp("tokenizer"), both=True))


def test_every_line_has_its_translation_in_order(translator: Translator) -> None:
    lines = [*SENTENCES[:5], "", *reversed(SENTENCES[:5])]
    texts = [translation.text for translation in translator.translate(lines)]
    assert len(texts) == len(lines)
    assert texts[:5] == texts[6:][::-1]
    assert texts[5] == ""


def test_batches_and_windows_change_no_translation(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = translator.translate(SENTENCES)
    alone = [translator.translate([line], batch_tokens=1)[0] for line in SENTENCES]
    monkeypatch.setattr("dragoman.translator._WINDOW_LINES", 3)
    windowed = list(translator.stream(iter(SENTENCES)))
    assert [t.text for t in together] == [t.text for t in alone] == [t.text for t in windowed]
    for one, other in zip(together, alone, strict=True):
        assert one.hypotheses[0].score == pytest.approx(other.hypotheses[0].score, abs=1e-4)


def test_sampling_does_not_depend_on_windows_and_repeats_with_its_seed(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = dataclasses.replace(GREEDY, kind="sample", seed=7)
    first = [t.text for t in translator.translate(SENTENCES, sampling)]
    monkeypatch.setattr("dragoman.translator._WINDOW_LINES", 2)
    assert [t.text for t in translator.translate(SENTENCES, sampling)] == first
    other_seed = dataclasses.replace(sampling, seed=8)
    assert [t.text for t in translator.translate(SENTENCES, other_seed)] != first


def test_a_paragraph_is_translated_sentence_by_sentence_and_spaced_as_english(translator: Translator) -> None:
    first, second, third = (translator.translate([line], GREEDY)[0].text for line in SENTENCES[:3])
    paragraph = f"{SENTENCES[0]}\n\n{SENTENCES[1]}{SENTENCES[2]}"
    assert translator.translate([paragraph], GREEDY)[0].text == f"{first}\n\n{second} {third}"


def test_chinese_sentences_are_joined_without_a_space(into_chinese: Translator) -> None:
    first, second = (into_chinese.translate([line], GREEDY)[0].text for line in SENTENCES[5:7])
    joined = into_chinese.translate([f"{SENTENCES[5]} {SENTENCES[6]}"], GREEDY)[0].text
    assert joined == first + second


def test_the_parts_of_a_line_add_up(translator: Translator) -> None:
    parts = [translator.translate([line])[0].hypotheses[0] for line in SENTENCES[:2]]
    whole = translator.translate(["".join(SENTENCES[:2])])[0].hypotheses[0]
    assert whole.score == pytest.approx(sum(part.score for part in parts), abs=1e-4)
    assert whole.tokens == parts[0].tokens + parts[1].tokens
    assert len(whole.tokens) == len(whole.token_scores)


@pytest.mark.parametrize("lines", [[SENTENCES[0]], ["".join(SENTENCES[:3])]])
def test_n_best_are_sorted_and_the_first_is_the_text(translator: Translator, lines: list[str]) -> None:
    found = translator.translate(
        lines, SearchConfig(beam_size=4, n_best=3, max_length_a=0.5, max_length_b=3)
    )[0]
    scores = [hypothesis.score for hypothesis in found.hypotheses]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert found.text == found.hypotheses[0].text
    assert len({tuple(hypothesis.tokens) for hypothesis in found.hypotheses}) == 3


@pytest.mark.parametrize("line", ["", " ", "\t", "\u3000", "\n", "\ufeff", "\x00"])
def test_a_blank_line_stays_blank(translator: Translator, line: str) -> None:
    assert translator.translate([line])[0].text == ""


@pytest.mark.parametrize("line", ["😀", "👨‍👩‍👧 🎉", "——", "…", "!?", "¥%@#"])
def test_what_has_neither_letters_nor_digits_is_copied(translator: Translator, line: str) -> None:
    assert translator.translate([line])[0].text == line


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=30), max_size=5))
def test_n_lines_in_n_lines_out_whatever_is_in_them(translator: Translator, lines: list[str]) -> None:
    found = translator.translate(lines, GREEDY)
    assert len(found) == len(lines)
    for translation in found:
        translation.text.encode("utf-8")  # no lone surrogates


def test_broken_text_is_mended_not_refused(translator: Translator) -> None:
    for line in ("好\ud800久", b"\xff\xfe\xe5\xa5".decode("utf-8", "surrogateescape"), "a\x00b\u2028c"):
        assert len(translator.translate([line], GREEDY)) == 1


def test_no_piece_is_longer_than_the_training_sentences_and_none_is_lost(translator: Translator) -> None:
    for line in ("好" * 1000, "一" * 77 + "，" + "二" * 99, "𠮷" * 50, "word " * 200, "e\u0301" * 300):
        pieces = translator._pieces(line)
        assert all(len(piece.ids) <= translator.max_length for piece in pieces)
        restored = "".join(piece.text + piece.space for piece in pieces)
        assert restored.replace(" ", "") == "".join(line.split()).replace("e\u0301", "é")


def test_a_million_characters_are_cut_up_in_linear_time(translator: Translator) -> None:
    begin = time.process_time()
    pieces = [
        piece for unit in ("好久不见。", "好") for piece in translator._pieces(unit * (500_000 // len(unit)))
    ]
    assert time.process_time() - begin < 60
    assert sum(len(piece.text) for piece in pieces) == 1_000_000


def test_a_long_text_is_translated_whole(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    def counting(model: object, sources: list[list[int]], *args: object, **kwargs: object) -> object:
        seen.extend(sources)
        return translate_ids(model, sources, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr("dragoman.torch_engine.translate_ids", counting)
    text = "".join(SENTENCES[:5]) * 40
    assert translator.translate([text], GREEDY)[0].text
    assert "".join(translator.bundle.src_tokenizer.decode(ids).replace(" ", "") for ids in seen) == text


def test_progress_counts_lines_up_to_all_of_them(translator: Translator) -> None:
    told: list[float] = []
    list(
        translator.stream(
            [*SENTENCES, "", "".join(SENTENCES[:5])], GREEDY, batch_tokens=64, progress=told.append
        )
    )
    assert told == sorted(told)
    assert told[-1] == len(SENTENCES) + 2
    assert len(told) > 2


def test_a_score_is_the_sum_over_the_pieces_and_the_end_mark(translator: Translator) -> None:
    bundle = translator.bundle
    src = torch.tensor([[*bundle.src_tokenizer.encode(SENTENCES[0]), EOS]])
    written, total = [BOS], 0.0
    for piece in [*bundle.tgt_tokenizer.encode(SENTENCES[5]), EOS]:
        with torch.no_grad():
            logits = bundle.model(src, torch.tensor([written]), src == PAD)[0, -1]
        total += float(logits.log_softmax(-1)[piece])
        written.append(piece)
    assert translator.score([SENTENCES[0]], [SENTENCES[5]])[0] == pytest.approx(total, abs=1e-3)


def test_scores_do_not_depend_on_the_batch_and_are_log_probabilities(translator: Translator) -> None:
    src, tgt = SENTENCES[:5], SENTENCES[5:]
    together = translator.score(src, tgt)
    alone = [translator.score([a], [b], batch_tokens=1)[0] for a, b in zip(src, tgt, strict=True)]
    assert together == pytest.approx(alone, abs=1e-3)
    assert all(score < 0 for score in together)
    assert translator.score([], []) == []


def test_what_cannot_be_scored_is_refused(translator: Translator) -> None:
    with pytest.raises(UserError, match="pairs"):
        translator.score(["a"], [])
    with pytest.raises(UserError, match="line 2"):
        translator.score(["好", "好" * 5000], ["a", "a"])


def test_attention_has_a_piece_for_every_row_and_column(translator: Translator) -> None:
    seen = translator.attend("我爱你。", "I love you.")
    n_src, n_tgt = len(seen.pieces["src"]), len(seen.pieces["tgt_out"])
    assert {kind: tuple(weights.shape) for kind, weights in seen.maps.items()} == {
        "encoder": (2, 4, n_src, n_src),
        "decoder": (2, 4, n_tgt, n_tgt),
        "cross": (2, 4, n_tgt, n_src),
    }
    assert seen.pieces["tgt_in"] == ["<s>", *seen.pieces["tgt_out"][:-1]]
    assert seen.pieces["src"][-1] == seen.pieces["tgt_out"][-1] == "</s>"
    assert "".join(seen.pieces["src"][:-1]).lstrip("▁") == "我爱你。"


def test_nothing_is_read_beyond_the_positions_that_a_model_has(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path)
    config = dataclasses.replace(bundle.model_config, position=PositionConfig(kind="learned", length=16))
    sizes = {"src_vocab_size": len(bundle.src_tokenizer), "tgt_vocab_size": len(bundle.tgt_tokenizer)}
    short = Translator(
        dataclasses.replace(bundle, model=Transformer(config, **sizes).eval(), model_config=config)
    )
    long = "好你" * 40
    assert short.translate([long], GREEDY)[0].text
    assert short.embed([long]).isfinite().all()
    with pytest.raises(UserError, match="no more than 16"):
        short.score([long], ["a"])
    with pytest.raises(UserError, match="more than 16 pieces"):
        short.attend(long, "a")


def test_a_model_of_both_directions_takes_the_one_whose_source_is_in_the_script(both: Translator) -> None:
    chinese, english = SENTENCES[:5], SENTENCES[5:]
    for lines, own, other in ((chinese, "zh_en", "en_zh"), (english, "en_zh", "zh_en")):
        by_itself = both.translate(lines, GREEDY)
        assert by_itself == both.translate(lines, GREEDY, direction=own)
        assert by_itself != both.translate(lines, GREEDY, direction=other)
        assert both.score(lines, lines) == both.score(lines, lines, direction=own)
        assert both.score(lines, lines) != both.score(lines, lines, direction=other)


def test_the_tag_of_the_target_language_goes_before_every_source(
    both: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []

    def looking(model: object, sources: list[list[int]], *args: object, **kwargs: object) -> object:
        seen.extend(sources)
        return translate_ids(model, sources, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr("dragoman.torch_engine.translate_ids", looking)
    tokenizer = both.bundle.src_tokenizer
    both.translate(["".join(SENTENCES[:5])], GREEDY)
    assert seen == [[*tokenizer.tag("en"), *tokenizer.encode(text)] for text in SENTENCES[:5]]
    assert both.attend(SENTENCES[5], "好").pieces["src"][0] == "<2zh>"
    assert both.attend(SENTENCES[5], "好", direction="zh_en").pieces["src"][0] == "<2en>"


def test_vectors_are_of_sources_read_behind_the_tag_of_the_direction(both: Translator) -> None:
    for lines, own, other in ((SENTENCES[:2], "zh_en", "en_zh"), (SENTENCES[5:7], "en_zh", "zh_en")):
        vectors = both.embed(lines)
        assert torch.equal(vectors, both.embed(lines, direction=own))
        assert not torch.allclose(vectors, both.embed(lines, direction=other), atol=1e-4)


def test_the_answers_of_either_direction_are_joined_as_its_target_is_written(both: Translator) -> None:
    for lines, direction, between in ((SENTENCES[:2], "zh_en", " "), (SENTENCES[5:7], "en_zh", "")):
        first, second = (both.translate([line], GREEDY)[0].text for line in lines)
        joined = both.translate(["".join(lines) if direction == "zh_en" else " ".join(lines)], GREEDY)
        assert joined[0].text == first + between + second


def test_a_stream_keeps_the_direction_of_its_first_window(
    both: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.translator._WINDOW_LINES", 2)
    lines = [*SENTENCES[:2], SENTENCES[5]]
    assert list(both.stream(iter(lines), GREEDY)) == both.translate(lines, GREEDY, direction="zh_en")


def test_what_says_nothing_about_its_language_takes_the_first_direction(both: Translator) -> None:
    for line in ("", "123", "？ 7"):
        assert both.translate([line], GREEDY) == both.translate([line], GREEDY, direction="zh_en")


def test_a_direction_that_was_not_learnt_is_refused_with_the_choices(
    translator: Translator, both: Translator
) -> None:
    assert translator.translate(["好"], GREEDY, direction="zh_en") == translator.translate(["好"], GREEDY)
    with pytest.raises(UserError, match=r"no direction 'en_zh'.*choose from zh_en$"):
        translator.translate(["好"], direction="en_zh")
    with pytest.raises(
        UserError, match=r"no direction 'zh-en' \(did you mean 'zh_en'\?\); choose from zh_en, en_zh"
    ):
        both.score(["好"], ["a"], direction="zh-en")


def test_an_impossible_device_is_refused(tiny_bundle_folder: Path) -> None:
    for name in ("tpu", "cuda:99", "meta:what"):
        with pytest.raises(UserError, match="choose auto"):
            choose_device(name)
    assert Translator.load(tiny_bundle_folder, "cpu").translate(["好"])[0].text is not None
