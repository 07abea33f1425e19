"""Modules without torch: errors, files, languages, metrics, configuration."""

import os
import re
from itertools import zip_longest
from pathlib import Path

import pytest

from dragoman import files, metrics
from dragoman.compose import GROUPS, compose, sweep
from dragoman.config import Config, CorpusConfig, DataConfig, SearchConfig
from dragoman.errors import UserError, check_choice, choose
from dragoman.languages import Direction, by_script, directions, is_unspaced, primary, reads, variant

ENGLISH = ["Long time no see.", "I love you more than anything.", "What time does the train to the airport leave?"]
CLOSE = ["Long time not seen you.", "I love you more than all.", "At what time does the train to the airport leave?"]
CHINESE = ["好久不见，你最近怎么样？", "我爱你胜过世界上的一切。", "下一班去机场的火车几点开？"]


class TestErrors:
    def test_a_message_is_one_line(self) -> None:
        assert str(UserError("a\n   b")) == "a b"

    def test_a_wrong_choice_is_named_with_the_choices(self) -> None:
        with pytest.raises(UserError, match=r"kind=ropee: choose one of rope, t5 \(did you mean 'rope'\?\)"):
            choose("kind", "ropee", {"rope": 1, "t5": 2})
        assert choose("kind", "t5", {"rope": 1, "t5": 2}) == 2
        check_choice("kind", "t5", ("t5",))


class TestFiles:
    def test_a_file_appears_only_when_it_is_complete(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        files.write(path, b"old")
        with files.replacing(path) as file:
            file.write(b"new")
            assert path.read_bytes() == b"old"
        assert path.read_bytes() == b"new"

    def test_a_file_stays_when_its_writer_fails(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        files.write(path, b"old")
        with pytest.raises(ZeroDivisionError), files.replacing(path) as file:
            file.write(b"new %d" % (1 // 0))
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]

    def test_keep_previous_keeps_the_previous_file(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        for content in (b"1", b"2", b"3"):
            with files.replacing(path, keep_previous=True) as file:
                file.write(content)
        assert (path.read_bytes(), files.previous_of(path).read_bytes()) == (b"3", b"2")

    def test_a_folder_is_replaced_whole(self, tmp_path: Path) -> None:
        folder = tmp_path / "bundle"
        files.replace_folder(folder, lambda new: (new / "a").write_text("1"))
        with pytest.raises(ValueError, match="stop"):
            files.replace_folder(folder, lambda new: (_ for _ in ()).throw(ValueError("stop")))
        assert (folder / "a").read_text() == "1"
        files.replace_folder(folder, lambda new: (new / "b").write_text("2"))
        assert [path.name for path in folder.iterdir()] == ["b"]
        assert list(tmp_path.iterdir()) == [folder]

    @pytest.mark.parametrize("renames", [0, 1])
    def test_a_killed_writer_leaves_a_whole_folder(
        self, renames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "bundle"
        files.replace_folder(folder, lambda new: (new / "a").write_text("old"))
        real, calls = os.replace, []

        def replace(src: str, dst: str) -> None:
            calls.append(dst)
            if len(calls) > renames:
                raise SystemExit
            real(src, dst)

        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(SystemExit):
            files.replace_folder(folder, lambda new: (new / "a").write_text("new"))
        monkeypatch.undo()
        assert (files.current(folder) / "a").read_text() == "old"
        files.replace_folder(folder, lambda new: (new / "a").write_text("newer"))
        assert (files.current(folder) / "a").read_text() == "newer"

    def test_a_write_that_fails_names_the_path(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"cannot write .*missing.*No such file"):
            files.write(tmp_path / "missing" / "file", b"x")

    def test_files_of_one_long_name_are_written_together(self, tmp_path: Path) -> None:
        paths = [tmp_path / f"{'doctor_' * 7}.{suffix}" for suffix in ("html", "json")]
        with files.replacing(paths[0]) as page, files.replacing(paths[1]) as record:
            page.write(b"page")
            record.write(b"record")
        assert [path.read_bytes() for path in paths] == [b"page", b"record"]


class TestLanguages:
    def test_both_directions_come_only_when_both_are_named(self) -> None:
        forward, back = Direction("zh", "en"), Direction("en", "zh")
        assert directions([], "zh", "en", key="k") == directions(["zh_en"], "zh", "en", key="k") == [forward]
        assert directions(["en_zh", "zh_en"], "zh", "en", key="k") == [forward, back]
        assert list(map(str, directions([], "en_GB", "zh_Hant", key="k"))) == ["en_GB_zh_Hant"]

    def test_impossible_directions_are_an_error(self) -> None:
        for name, message in {"zh_fr": "zh_fr: choose one of zh_en, en_zh", "en_zh": "reverses src and tgt"}.items():
            with pytest.raises(UserError, match=message):
                directions([name], "zh", "en", key="data.directions")

    def test_a_script_fits_its_languages(self) -> None:
        for language, text, fits in [
            ("zh", "好久不见", True), ("zh", "long time no see", False), ("en", "long time", True),
            ("en", "好久不见", False), ("zh", "我用 Python 写代码", True), ("ja", "久しぶりですね", True),
            ("zh", "久しぶりですね", False), ("ko", "오랜만이에요", True), ("zh", "오랜만이에요", False),
            ("zh", "123!", True), ("zh-Hant", "好久不見", True), ("ru", "Давно не виделись", True),
            ("ru", "long time", False), ("de", "Schöne Grüße", True), ("de", "Привет", False), ("xx", "Привет", True),
            ("ru", "Используйте API function", True), ("en", "2 µm", True),
        ]:  # fmt: skip
            assert reads(language, text) is fits, (language, text)

    def test_the_direction_follows_the_script(self) -> None:
        both = [Direction("zh", "en"), Direction("en", "zh")]
        assert by_script(both, "好久不见") == both[0]
        assert by_script(both, "long time") == both[1]
        assert by_script(both, "123") == both[0]
        with pytest.raises(UserError, match="--direction de_en"):
            by_script([Direction("de", "en"), Direction("en", "de")], "hello")

    def test_codes_have_a_short_form(self) -> None:
        assert [primary(code) for code in ("zh-Hant", "cmn", "en_GB", "cn", "German")] == ["zh", "zh", "en", "zh", "de"]
        assert (is_unspaced("zh-TW"), is_unspaced("en")) == (True, False)
        assert [variant(code) for code in ("ZH-TW", "zh_Hant_HK", "en_GB")] == ["zh-hant", "zh-hant", "en-gb"]


class TestMetrics:
    @pytest.mark.parametrize(("text", "tgt"), [(ENGLISH, "en"), (CHINESE, "zh")])
    def test_a_text_against_itself_is_perfect(self, text: list[str], tgt: str) -> None:
        scores = metrics.evaluate(hypotheses=text, references=[[each] for each in text], tgt=tgt)
        assert [round(scores[name].score, 6) for name in ("bleu", "chrf", "ter")] == [100, 100, 0]

    def test_the_tokenizer_follows_the_target_language(self) -> None:
        tokenizers = {"zh": "zh", "zh-Hant": "zh", "cmn": "zh", "yue": "zh", "en": "13a", "de": "13a"}
        references = [[text] for text in CHINESE]
        for tgt, tokenizer in tokenizers.items():
            scores = metrics.evaluate(hypotheses=CHINESE, references=references, tgt=tgt, metrics=("bleu",))
            assert f"tok:{tokenizer}|" in scores["bleu"].signature, tgt

    def test_missing_references_score_as_in_sacrebleu(self) -> None:
        from sacrebleu.metrics import BLEU, CHRF

        references = [[ENGLISH[0], "It's been ages."], [ENGLISH[1]], [ENGLISH[2]]]
        streams = [ENGLISH, ["It's been ages.", None, None]]
        scores = metrics.evaluate(hypotheses=CLOSE, references=references, tgt="en")
        assert scores["bleu"].score == pytest.approx(BLEU().corpus_score(CLOSE, streams).score)
        assert scores["chrf"].score == pytest.approx(CHRF().corpus_score(CLOSE, streams).score)
        assert "nrefs:2" in scores["bleu"].signature

    def test_ter_of_chinese_counts_characters(self) -> None:
        hypothesis = [CHINESE[0].replace("久", "长")]
        assert 0 < metrics.evaluate(hypotheses=hypothesis, references=[CHINESE[:1]], tgt="zh")["ter"].score < 20


class TestConfig:
    def test_every_choice_of_every_group_composes(self) -> None:
        groups = ("model", "data", "search", "trainer", "training", "recipe")
        others = zip_longest(*([f"{group}={name}" for name in GROUPS[group]] for group in groups))
        for choices in [*others, *([f"experiment={name}"] for name in GROUPS["experiment"])]:
            assert isinstance(compose([choice for choice in choices if choice]), Config), choices

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("trainig.lr=1", "trainig: not a setting (did you mean 'training'?)"),
            ("training.learning_rate=1", "training.learning_rate: not a setting"),
            ("+foo=1", "foo: not a setting"),
            ("training.lr=fast", "training.lr: Value 'fast'"),
            ("training.lr=-1", "training.lr=-1.0: must be at least 0"),
            ("training.lr=nan", "training.lr=nan"),
            ("model=medium", "model=medium: choose one of auto, base, big, small, tiny"),
            ("model=null", "model"),
            ("experiment=zh", "experiment=zh: choose one of"),
            ("model.norm=middle", "model.norm=middle: choose one of pre, post"),
            ("experiment=smoke;model.n_heads=3", "is no multiple of 3"),
            ("experiment=smoke;model.d_model=30;model.n_heads=2;model.position.kind=rope", "is no multiple of 4"),
            ("data.tgt=zh", "name two languages"),
            ("data.max_tokens=10", "data.max_length=256"),
            ("data.tokenizer.vocabulary=separate", "model.tie=tgt"),
            ("trainer.max_time=5", "days:hours:minutes:seconds"),
            ("trainer.max_time=00:00:00:00", "days:hours:minutes:seconds"),
            ("search.n_best=9", "search.beam_size=5"),
            ("name=a/b", "name=a/b"),
            ("data.corpora=[{path: a, src_path: b}]", "both src_path and tgt_path"),
            ("data.corpora=[{}]", "either path"),
            ("data.corpora=my.tsv", "is a list"),
            ("data.corpora=[my.tsv]", "data.corpora[0]: write each corpus as in '[{path: my.tsv}]'"),
            ("data.corpora=[{file: my.tsv}]", "a corpus has no 'file'"),
            ("data.corpora=[{path: 我的.tsv}]", "quote spaces and Chinese"),
            ("experiment=smoke,copy", "Add -m"),
            ("data.root=~/data", "Write the path without ~"),
        ],
    )
    def test_a_mistake_is_explained_in_one_line(self, override: str, message: str) -> None:
        with pytest.raises(UserError, match=re.escape(message)) as caught:
            compose(override.split(";"))
        assert "\n" not in str(caught.value)

    def test_a_sweep_is_every_combination(self) -> None:
        runs = sweep(["experiment=copy", "training.lr=1e-3,2e-3", "seed=1,2"])
        assert len(runs) == 4
        assert runs[1] == ["experiment=copy", "training.lr=0.001", "seed=2", "name='copy_lr=0.001_seed=2'"]

    def test_derived_values(self) -> None:
        assert DataConfig(directions=["zh_en", "en_zh"], max_length=10).longest == 12
        assert compose(["trainer.max_time=00:01:02:03"]).trainer.max_seconds == 3723
        assert SearchConfig(max_length_a=2, max_length_b=5).max_length(10) == 25
        corpus = CorpusConfig(path="Helsinki-NLP/opus-100", name="en-zh")
        assert (corpus.label, corpus.short_name) == ("Helsinki-NLP/opus-100 (en-zh)", "opus-100")
