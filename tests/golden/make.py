"""How the golden bundle was made: python tests/golden/make.py FOLDER (a minute, once for each format version).

A model of both directions learns the first sixty phrases of the phrasebook nearly by heart, is saved in half precision
as `bundle`, and what it makes of some texts as `translations.json`. FOLDER must be new: a golden bundle is never made
again, for what it shows is that a bundle written by an older Dragoman still says the same.
"""

import contextlib
import json
import sys
import tempfile
from pathlib import Path

from dragoman import bundle
from dragoman.config import Config
from dragoman.data.corpus import CorpusConfig
from dragoman.data.datamodule import DataConfig
from dragoman.data.tokenizer import TokenizerConfig
from dragoman.model.transformer import ModelConfig
from dragoman.search.search import SearchConfig
from dragoman.training.fit import TrainerConfig, fit
from dragoman.training.module import TrainingConfig
from dragoman.translator import Translator

PHRASES = Path(__file__).parents[2] / "data" / "phrasebook" / "handwritten" / "people.tsv"
N_PHRASES = 60
SEARCHES = [
    {"kind": "greedy"},
    {"kind": "beam", "beam_size": 4, "n_best": 2},
    {"kind": "beam", "beam_size": 3, "length_penalty": 0.0},
]


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True)
    phrases = PHRASES.read_text(encoding="utf-8").splitlines()[:N_PHRASES]
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
        Path("phrases.tsv").write_text("\n".join(phrases) + "\n", encoding="utf-8")
        bundle.save(bundle.load(fit(config())), folder / "bundle", dtype="float16")
    write_translations(folder, phrases)


def write_translations(folder: Path, phrases: list[str]) -> None:
    """`found` holds, for each line, the texts of its hypotheses and their log-probabilities."""
    translator = Translator.load(folder / "bundle", "cpu")
    known = [line.split("\t") for line in phrases]
    chinese = [known[i][0] for i in range(0, N_PHRASES, 7)]
    english = [known[i][1] for i in range(0, N_PHRASES, 7)]
    texts = {
        "zh_en": [
            *chinese,
            "".join(chinese[:3]),
            "2026年你好吗？",
            "𠮷家の牛丼 😀",
            "……",
            "",
            "<s>你▁好</s>",
        ],
        "en_zh": [
            *english,
            " ".join(english[:3]),
            "HOW old are you in 2026?",
            "naïve e\u0301tude",
            "...",
            "",
            "<2en> x",
        ],
    }
    written = [
        {
            "direction": direction,
            "search": search,
            "lines": lines,
            "found": [
                [[hypothesis.text, sum(hypothesis.token_scores)] for hypothesis in translation.hypotheses]
                for translation in translator.translate(lines, SearchConfig(**search), direction=direction)
            ],
        }
        for direction, lines in texts.items()
        for search in SEARCHES
    ]
    as_json = json.dumps(written, ensure_ascii=False, indent=1)
    (folder / "translations.json").write_text(as_json + "\n", encoding="utf-8")


def config() -> Config:
    return Config(
        name="golden",
        run_dir="run",
        data=DataConfig(
            corpora=[CorpusConfig(path="phrases.tsv")],
            directions=["zh_en", "en_zh"],
            tokenizer=TokenizerConfig(kind="bpe", vocab_size=600),
            cache="cache",
            max_tokens=1200,
            validation_size=3,
            test_size=3,
        ),
        model=ModelConfig(
            d_model=32, d_ff=64, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, dropout=0.0
        ),
        training=TrainingConfig(lr=1e-2, warmup_steps=100, monitor="loss", average_last=0),
        trainer=TrainerConfig(
            accelerator="cpu",
            precision="32",
            max_steps=1500,
            validate_every=1500,
            validation_pairs=3,
            samples=0,
        ),
    )


if __name__ == "__main__":
    main()
