"""Pairs seen in training: both scripts of Chinese, and tagged sources."""

from collections.abc import Callable

import pytest

from dragoman.config import CorpusConfig
from dragoman.data.cleaning import DUPLICATE, LEAK, SYNTHETIC_TARGET
from dragoman.data.text import SYNTHETIC
from dragoman.errors import UserError

pytest.importorskip("opencc")

HANS = [("我们学习汉语。", "We learn Chinese."), ("他们画图。", "They draw."), ("你好。", "Hello.")]
HANT = [("我們學習漢語。", "We learn Chinese."), ("他們畫圖。", "They draw.")]
WHOLE = {"validation_size": 0, "test_size": 0}


@pytest.mark.parametrize("order", [HANS, HANT + HANS[2:], HANS + HANT])
def test_both_scripts_are_seen_once(prepare: Callable, write: Callable, seen: Callable, order: list) -> None:
    data = prepare(write("a.tsv", order), script="both", **WHOLE)
    assert seen(data) == sorted(HANS + HANT)


def test_leaks_are_found_across_scripts(prepare: Callable, write: Callable, seen: Callable, report: Callable) -> None:
    test = CorpusConfig(path=write("test.tsv", HANT[:1]), split="test")
    data = prepare(write("a.tsv", HANS), test, script="both", **WHOLE)
    assert seen(data) == sorted([HANS[1], HANT[1], HANS[2]])
    assert [pair.src for pair in data.test] == [HANT[0][0]]
    assert report() == {"kept": 3, LEAK: 1}


def test_splits_from_train_keep_their_script(small: Callable, seen: Callable, pairs: list) -> None:
    data = small(script="both", validation_size=4, test_size=4)
    held_out = {(pair.src, pair.tgt) for pair in [*data.validation, *data.test]}
    assert held_out < set(pairs)
    assert not {tgt for _, tgt in held_out} & {tgt for _, tgt in seen(data)}


def test_a_model_of_one_script_reads_the_other(prepare: Callable, write: Callable) -> None:
    # OpenCC converts 乾 to 干, but not in 乾隆.
    data = prepare(write("a.tsv", [*HANT, ("乾隆皇帝。", "The Qianlong Emperor.")] * 9), script="hans", **WHOLE)
    tokenizer = data.src_tokenizer
    assert tokenizer.encode("我們學習漢語。") == tokenizer.encode("我们学习汉语。")
    assert tokenizer.decode(tokenizer.encode("乾隆")) == "乾隆"
    assert tokenizer.decode(tokenizer.encode("１２, “A” ﾊ")) == "１２, “A” ﾊ"
    plain = prepare(write("b.tsv", HANS * 9), **WHOLE).src_tokenizer
    assert plain.decode(plain.encode("我們")) == "我們"


@pytest.mark.parametrize("options", [{"src": "en", "tgt": "zh"}, {"directions": ["zh_en", "en_zh"]}])
def test_both_scripts_are_only_for_sources(small: Callable, options: dict) -> None:
    with pytest.raises(UserError, match=r"script=both: translations would mix"):
        small(script="both", **options)


def test_tagged_pairs_are_only_in_train(prepare: Callable, write: Callable, pairs: list, seen: Callable) -> None:
    tagged = [(SYNTHETIC + zh, en) for zh, en in pairs[::2]]
    data = prepare(write("a.tsv", pairs[1::2]), write("b.tsv", tagged), validation_size=5, test_size=5)
    assert len(data.validation) == len(data.test) == 5
    assert not [pair for pair in [*data.validation, *data.test] if pair.src.startswith(SYNTHETIC)]
    assert [src for src, _ in seen(data) if src.startswith(SYNTHETIC)]


def test_a_tagged_pair_is_compared_without_its_tag(
    prepare: Callable, write: Callable, seen: Callable, report: Callable
) -> None:
    tagged = [(SYNTHETIC + zh, en) for zh, en in (HANS[2], ("再见。", "They draw."), ("早。", "Morning."))]
    test = CorpusConfig(path=write("test.tsv", HANS[1:2]), split="test")
    data = prepare(write("a.tsv", [HANS[0], HANS[2]]), write("b.tsv", tagged), test, **WHOLE)
    assert seen(data) == sorted([HANS[0], HANS[2], tagged[2]])
    assert report() == {"kept": 3, DUPLICATE: 1, LEAK: 1}


@pytest.mark.parametrize("options", [{"src": "en", "tgt": "zh"}, {"directions": ["zh_en", "en_zh"]}])
def test_the_tag_is_never_a_target(prepare: Callable, write: Callable, report: Callable, options: dict) -> None:
    rows = [{"zh": zh, "en": en} for zh, en in [*HANS, (SYNTHETIC + "早。", "Morning.")]]
    prepare(write("a.jsonl", rows), **WHOLE, **options)
    assert report() == {"kept": 3, SYNTHETIC_TARGET: 1}
