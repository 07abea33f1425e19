"""Tiny runs and models, and functions that read their results."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.loggers import Logger
from torch.utils.data import DataLoader

from dragoman import config as settings
from dragoman.config import Config, ModelConfig
from dragoman.data.collate import Batch, collate
from dragoman.model.transformer import Transformer
from dragoman.training.fit import fit
from dragoman.training.module import TranslationModule
from dragoman.training.progress import LOGGERS

WHO = [("我", "I"), ("你", "You"), ("我们", "We"), ("他们", "They"), ("孩子们", "The children")]
DO = [("喜欢", "like"), ("看见", "see"), ("卖", "sell"), ("画", "draw"), ("想要", "want"), ("找", "look for")]
WHAT = [("苹果", "apples"), ("茶", "tea"), ("书", "books"), ("鱼", "fish"), ("花", "flowers"), ("雨", "rain")]
VOCABULARY = 40


@dataclass
class Runs:
    """Small runs in one folder, over one corpus, and their configurations."""

    folder: Path
    corpus: Path

    def config(self, name: str, *, model=None, training=None, trainer=None, init_from=None, **data: Any) -> Config:
        corpora = [settings.CorpusConfig(path=str(self.corpus / part)) for part in ("farm", "town")]
        cache = str(self.corpus / "cache")
        data = {"max_tokens": 120, "max_length": 40, "test_size": 0, "corpora": corpora, "cache": cache} | data
        tokenizer = settings.TokenizerConfig(kind="unigram", vocab_size=330, sampling=0.2)
        sizes = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1}
        sizes |= {"score": "additive"}  # CTranslate2 cannot express it: no time for an export
        watch = {"validation_pairs": 6, "samples": 0, "log_every": 1, "validate_every": 5, "keep_snapshots": 2}
        steps = {"optimizer": "muon", "ema": 0.9, "warmup_steps": 5, "lr": 3e-3, "accumulate": 2}
        hardware = {"accelerator": "cpu", "precision": "32"}
        return Config(
            name=name,
            init_from=init_from,
            run_dir=str(self.folder / name),
            data=settings.DataConfig(tokenizer=tokenizer, **data),
            model=ModelConfig(**{"dropout": 0.2} | sizes | (model or {})),
            training=settings.TrainingConfig(**steps | (training or {})),
            trainer=settings.TrainerConfig(**{"max_steps": 12} | hardware | watch | (trainer or {})),
        )

    def fit(self, name: str, **options: Any) -> Path:
        """Train, and return the folder of the run."""
        return fit(self.config(name, **options)).parent


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """180 sentences in two corpora, `farm` and `town`, with validation splits."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = [f"{a}{b}{c}。\t{x} {y} {z}." for (a, x), (b, y), (c, z) in itertools.product(WHO, DO, WHAT)]
    for name, part in (("farm", rows[::2]), ("town", rows[1::2])):
        (folder / name).mkdir()
        for split, lines in (("train", part[12:]), ("validation", part[:12])):
            text = "\n".join(["zh\ten", *lines]) + "\n"
            (folder / name / f"{split}.tsv").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def runs(tmp_path: Path, corpus: Path) -> Runs:
    return Runs(tmp_path, corpus)


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """Read-only folder of a finished run that was never interrupted."""
    trainer = {"samples": 1, "loggers": ["tensorboard", "csv"]}
    return Runs(tmp_path_factory.mktemp("runs"), corpus).fit("straight", trainer=trainer)


class Nudge(Logger):
    """A logger that calls `do` when it is given the scalar `name` at a step."""

    name, version = "nudge", 0

    def __init__(self, do: Callable[[], object], step: int, name: str) -> None:
        super().__init__()
        self.do, self.step, self.scalar = do, step, name

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if step == self.step and self.scalar in metrics:
            self.do()

    def log_hyperparams(self, *_: Any) -> None: ...

    @property
    def experiment(self) -> None: ...


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Trainer settings that call `do` at the end of a step, or in its validation."""

    def at_step(step: int, do: Callable[[], object], *, scalar: str = "train/loss") -> dict[str, Any]:
        monkeypatch.setitem(LOGGERS, "nudge", lambda run_dir, first: Nudge(do, step, scalar))
        return {"loggers": ["nudge"]}

    return at_step


def metrics_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "metrics.json").read_text(encoding="utf-8"))


def checkpoint_of(run: Path) -> dict[str, Any]:
    return torch.load(run / "last.ckpt", weights_only=True)


def outcome(run: Path) -> dict[str, Any]:
    """Results of a run, for an exact comparison."""
    saved = checkpoint_of(run)
    moments = saved["optimizer_states"][0]["state"]
    tensors = saved["state_dict"] | {f"{i} {name}": t for i, m in moments.items() for name, t in m.items()}
    records = [{k: value for k, value in each.items() if k != "seconds"} for each in metrics_of(run)["validations"]]
    weights = (run / "bundle" / "model.safetensors").read_bytes()
    values = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
    return {"step": saved["global_step"], "records": records, "weights": weights, **values}


class Batches(LightningDataModule):
    """A list of batches, as the module's data."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        super().__init__()
        self.batches, self.consumed = list(batches), 0

    def train_dataloader(self) -> Any:
        # Lightning takes a list for several dataloaders.
        return DataLoader(self.batches, batch_size=None, collate_fn=lambda batch: batch)

    val_dataloader = train_dataloader


def batches_of(*sizes: int) -> list[Batch]:
    """Batches of so many sentences, all of different lengths."""
    ids = iter(itertools.cycle(range(4, VOCABULARY)))
    sentences = [[next(ids) for _ in range(1 + n % 7)] for n in range(sum(sizes))]
    cut = [0, *itertools.accumulate(sizes)]
    return [collate(sentences[a:b], [s[::-1] + s[:1] for s in sentences[a:b]]) for a, b in itertools.pairwise(cut)]


def make_model(**options: Any) -> Transformer:
    torch.manual_seed(1)
    sizes = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1}
    config = ModelConfig(**{**sizes, "dropout": 0.0, **options})
    return Transformer(config, src_vocab_size=VOCABULARY, tgt_vocab_size=VOCABULARY)


def train_module(module: TranslationModule, batches: Sequence[Batch], **options: Any) -> Trainer:
    """Train on the batches once, through Lightning."""
    off = ("logger", "limit_val_batches", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options |= dict.fromkeys(off, False) | {"accumulate_grad_batches": module.config.accumulate}
    trainer = Trainer(accelerator="cpu", max_epochs=1, **options)
    trainer.fit(module, datamodule=Batches(batches))
    return trainer


# Functions as fixtures: tests may not import this file.
_functions = metrics_of, checkpoint_of, outcome, batches_of, make_model, train_module
_shared = {"make_data": Batches} | {function.__name__: function for function in _functions}
for _name, _function in _shared.items():
    globals()[f"_{_name}"] = pytest.fixture(name=_name)(lambda function=_function: function)
