"""Columns, ranks and the terminal line of a validation, with a stub of the data."""

from types import SimpleNamespace

from dragoman.config import Config, DataConfig, TrainerConfig, TrainingConfig
from dragoman.data.text import Pair
from dragoman.languages import Direction
from dragoman.training.validation import ValidationCallback, select_pairs

PAIRS = [Pair(f"s{n}", f"t{n}", (f"t{n}",), "ab"[n % 2]) for n in range(8)]
BOTH = Direction("zh", "en"), Direction("en", "zh")


def make(pairs=PAIRS, *, monitor="bleu", metrics=("bleu", "ter"), patience=0, max_length=256, n_pairs=8, to=BOTH[:1]):
    tags = {"en": [1], "zh": [2]} if len(to) > 1 else {"en": []}
    tokenizer = SimpleNamespace(encode_batch=lambda texts: [[4] * 9 for _ in texts], tag=tags.get)
    data = SimpleNamespace(validation=pairs, directions=list(to))
    data.src_tokenizer = data.tgt_tokenizer = tokenizer
    trainer = TrainerConfig(metrics=list(metrics), validation_pairs=n_pairs)
    training, data_config = TrainingConfig(monitor=monitor, patience=patience), DataConfig(max_length=max_length)
    return ValidationCallback(data, Config(data=data_config, trainer=trainer, training=training), SimpleNamespace())


def record(step, **scores):
    return {"step": step, "loss": 1.0, **scores}


def test_each_corpus_has_columns_of_its_own():
    assert make(metrics=["bleu"]).columns == ["bleu", "exact", "bleu_a", "exact_a", "bleu_b", "exact_b"]
    alone = [pair for pair in PAIRS if pair.corpus == "a"]
    assert make(alone, metrics=["bleu"]).columns == ["bleu", "exact"]


def test_every_column_may_be_monitored():
    for monitor, best in (("bleu", 2), ("ter", 1), ("ter_a", 3), ("loss", 3)):
        validation = make(monitor=monitor)
        validation.history = [
            record(1, bleu=1, ter=10, ter_a=5) | {"loss": 3.0},
            record(2, bleu=9, ter=20, ter_a=6) | {"loss": 2.0},
            record(3, bleu=5, ter=30, ter_a=4) | {"loss": 1.0},
        ]
        assert validation.best["step"] == best


def test_the_loss_decides_between_equal_scores():
    validation = make()
    validation.history = [record(1, bleu=0) | {"loss": loss} for loss in (3.0, 2.0, float("nan"))]
    assert validation.best["loss"] == 2.0


def test_patience_counts_validations_since_the_best():
    validation = make(patience=2)
    for step, (bleu, exhausted) in enumerate([(5, False), (4, False), (6, False), (6, False), (6, True)]):
        validation.history.append(record(step, bleu=bleu))
        assert validation.is_exhausted == exhausted
    validation.patience = 0
    assert not validation.is_exhausted


def test_sources_have_at_most_max_length_pieces():
    assert {len(source) for source in make(max_length=5).sources} == {5}
    assert {len(source) for source in make().sources} == {9}


def test_each_direction_has_its_tag_and_its_scores():
    validation = make(metrics=["bleu"], to=BOTH)
    assert [ids[0] for ids in validation.sources] == [1, 2] * (len(validation.sources) // 2)
    validation.hypotheses = [text if n % 2 == 0 else "?" for n, (text, *_) in enumerate(validation.references)]
    scores = validation._score()
    assert (scores["exact_zh_en"], scores["exact_en_zh"], scores["exact"]) == (100, 0, 50)


def test_every_corpus_has_an_equal_share():
    pairs = [Pair("s", "t", (), "small")] * 2 + [Pair("s", "t", (), "large")] * 20
    for n, of_each in ((4, (2, 2)), (99, (2, 20)), (1, (0, 1))):
        names = [pair.corpus for pair in select_pairs(pairs, n)]
        assert (names.count("small"), names.count("large")) == of_each
    assert select_pairs(PAIRS, 5) == select_pairs(PAIRS, 5)
