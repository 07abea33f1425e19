"""Results of a run: metrics.json, snapshots, the bundle."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from safetensors.torch import load_file, save

from dragoman import bundle, files
from dragoman.config import Config
from dragoman.training.machine import provenance
from dragoman.training.module import TranslationModule
from dragoman.training.validation import Record, ValidationCallback


@dataclass
class Results:
    """Writer of a run's results; `metrics` is the content of metrics.json."""

    config: Config
    run_dir: Path
    module: TranslationModule
    validation: ValidationCallback
    metrics: dict[str, Any]

    def __post_init__(self) -> None:
        self.data, self.snapshots = self.validation.data, self.run_dir / "snapshots"
        self.metrics |= {"data": self.data.fingerprint, "notes": list(self.data.notes), "machine": provenance()}

    def write(self, **news: Any) -> None:
        """Write metrics.json: what the next start and people read."""
        self.metrics |= news | {
            "best": self.validation.best,
            "validations": self.validation.history,
            "average": self.validation.average,
            "train": self.module.measured,
            "skipped": int(self.module.skips[0]),
        }
        content = json.dumps(self.metrics, ensure_ascii=False, indent=2) + "\n"
        files.write(self.run_dir / "metrics.json", content.encode())

    def keep(self, step: int) -> None:
        """Save a snapshot, and the bundle if no validation was better."""
        self.snapshots.mkdir(exist_ok=True)
        # parameters rather than state_dict: tied ones once
        weights = save(dict(self.module.best_model.named_parameters()))
        files.write(self.snapshots / f"step-{step:09d}.safetensors", weights)
        n_kept = max(self.config.trainer.keep_snapshots, self.config.training.average_last)
        for old in sorted(self.snapshots.glob("*.safetensors"))[:-n_kept]:
            old.unlink()
        if self.validation.is_best:
            self.save_bundle(self.validation.history[-1])

    def save_bundle(self, record: Record) -> None:
        """Write the validated weights, which scored `record`, as the run's bundle.

        Their translations are written beside it.
        """
        texts = json.dumps(self.validation.translations(), ensure_ascii=False, indent=1)
        files.write(self.run_dir / "validation.json", texts.encode("utf-8", "replace"))
        c, data = self.config, self.data
        origin: dict[str, Any] = {"corpora": [corpus.label for corpus in c.data.corpora], "notes": data.notes}
        origin |= {"fingerprint": data.fingerprint, "train_pairs": data.train_size}
        meta = {"name": c.name, "validation": record, "data": origin, "max_length": c.data.max_length}
        trained = bundle.Bundle(
            model=self.module.best_model,
            model_config=c.model,
            src_tokenizer=data.src_tokenizer,
            tgt_tokenizer=data.tgt_tokenizer,
            src=c.data.src,
            tgt=c.data.tgt,
            meta=meta,
            search=c.search,
            directions=data.directions,
        )
        bundle.save(trained, self.run_dir / "bundle")

    def try_average(self, trainer: Trainer) -> None:
        """Validate the mean of the last snapshots, and keep it if it is the best.

        Vaswani et al. 2017, section 6.1.
        """
        validation, n = self.validation, self.config.training.average_last
        snapshots = sorted(self.snapshots.glob("*.safetensors"))[-n:]
        mean = bundle.average(load_file(path) for path in snapshots)
        self.module.best_model.load_state_dict(mean, strict=False)  # a tied matrix has one of its names
        if trainer.is_global_zero:
            validation.report(f"the mean of the last {len(snapshots)} snapshots:")
        trainer.validate(self.module, datamodule=self.data, verbose=False)
        record = validation.history.pop() | {"snapshots": len(snapshots)}
        # At an earlier end of the run there may have been a better one.
        if validation.is_best or validation.average is None:
            validation.average = record
        if validation.is_best and trainer.is_global_zero:
            self.save_bundle(record)
