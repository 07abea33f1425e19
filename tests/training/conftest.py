"""A run of a few seconds."""

from pathlib import Path

import pytest

from dragoman.config import Config
from dragoman.data.corpus import CorpusConfig
from dragoman.data.datamodule import DataConfig
from dragoman.data.tokenizer import TokenizerConfig
from dragoman.model.transformer import ModelConfig
from dragoman.training.module import TrainingConfig
from dragoman.training.trainer import TrainerConfig

PHRASES = Path(__file__).parents[2] / "data" / "phrasebook" / "handwritten" / "people.tsv"


@pytest.fixture
def config(tmp_path):
    """A run of a few seconds: 200 phrases, a minute model, every random thing switched on."""
    lines = PHRASES.read_text(encoding="utf-8").splitlines()[:200]
    (tmp_path / "phrases.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def make(
        name: str = "run", *, training: dict | None = None, trainer: dict | None = None, **data
    ) -> Config:
        tokenizer = TokenizerConfig(kind="unigram", vocab_size=600, sampling=0.2)
        defaults = {"max_tokens": 300, "validation_size": 20, "test_size": 20, "max_length": 60}
        return Config(
            name=Path(name).name,
            run_dir=str(tmp_path / name),
            data=DataConfig(
                corpora=[CorpusConfig(path=str(tmp_path / "phrases.tsv"))],
                tokenizer=tokenizer,
                **{"cache": str(tmp_path / "cache"), **defaults, **data},
            ),
            model=ModelConfig(
                d_model=32, d_ff=64, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, dropout=0.2
            ),
            training=TrainingConfig(**{"ema": 0.9, "warmup_steps": 5, "lr": 3e-3, **(training or {})}),
            trainer=TrainerConfig(
                **{
                    "accelerator": "cpu",
                    "precision": "32",
                    "max_steps": 12,
                    "validate_every": 5,
                    "log_every": 2,
                    "validation_pairs": 4,
                    "samples": 0,
                    **(trainer or {}),
                }
            ),
        )

    return make
