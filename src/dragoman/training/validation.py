"""Validation: loss, metrics of greedy translations, samples, attention maps.

A record holds the loss, each metric and `exact`, the percentage of translations that equal a reference. A model of
both directions has the mean of its directions there, and each direction's own as bleu_zh_en. Where the pairs come
from several corpora, each corpus has columns of its own, such as bleu_written.
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer

from dragoman.config import Config, SearchConfig
from dragoman.data.datamodule import TranslationData
from dragoman.data.text import Pair, clean_text
from dragoman.errors import check_choice
from dragoman.explain.attention_map import attended
from dragoman.explain.picture import attention_figure, curve_figure, pixels
from dragoman.languages import Direction
from dragoman.metrics import LOWER_IS_BETTER, evaluate
from dragoman.model.transformer import Transformer
from dragoman.training.module import TranslationModule
from dragoman.training.progress import boards, log_scalars
from dragoman.translation.engine import translate_ids

Record = dict[str, Any]


class ValidationCallback(Callback):
    """Translate and score at each validation; `history` holds the records."""

    def __init__(
        self, data: TranslationData, config: Config, module: TranslationModule, say: Callable[[str], None]
    ) -> None:
        self.data, self.say, self.directions = data, say, data.directions
        self.metrics, self.n_samples = config.trainer.metrics, config.trainer.samples
        self.monitor, self.patience = config.training.monitor, config.training.patience
        # Directions alternate, so that a few samples show each: pairs[i::n] are those of direction i.
        n = len(self.directions)
        pairs = select_pairs(data.validation, config.trainer.validation_pairs)
        self.pairs = [p for pair in pairs for p in (pair, pair.swapped())[:n]]
        self.groups = _groups([pair.corpus for pair in self.pairs], self.directions)
        self.scores = [*self.metrics, "exact"]
        self.columns = [name + suffix for suffix in self.groups for name in self.scores]
        check_choice("training.monitor", self.monitor, ["loss", *self.columns])
        self.search = SearchConfig(kind="greedy")
        encoded = data.src_tokenizer.encode_batch([pair.src for pair in self.pairs])
        tags = [data.src_tokenizer.tag(direction.tgt) for direction in self.directions]
        # A sentence may be longer than those of training, and than the model's table of positions.
        limit = module.model.max_positions and module.model.max_positions - 1
        self.sources = [[*tags[i % n], *ids][:limit] for i, ids in enumerate(encoded)]
        self.history: list[Record] = []
        self.before: list[str] = []  # the samples' translations at the last validation
        self.average: Record | None = None  # the record of averaged snapshots, which belong to no step
        self.is_best = False

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history, "before": self.before}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history, self.before = list(state_dict["history"]), state_dict["before"]

    @property
    def best(self) -> Record | None:
        """The record of the best validation so far."""
        records = [*self.history, self.average] if self.average else self.history
        return max(records, key=self._rank) if records else None

    @property
    def is_exhausted(self) -> bool:
        """Whether the last training.patience validations brought nothing better."""
        ranks = [self._rank(record) for record in self.history]
        return bool(self.patience and ranks) and len(ranks) - 1 - ranks.index(max(ranks)) >= self.patience

    def _rank(self, record: Record) -> tuple[float, float]:
        """Rank of a record, larger is better; the loss decides between equal scores."""
        sign = -1 if self.monitor.split("_")[0] in LOWER_IS_BETTER else 1
        value = -math.inf if self.monitor == "loss" else sign * record[self.monitor]
        return value, -record["loss"] if math.isfinite(record["loss"]) else -math.inf

    def curve(self) -> bytes:
        """Draw the metrics of all validations by step, as a PNG."""
        steps = [record["step"] for record in self.history]
        names = [name for name in self.columns if not name.startswith("exact")] or ["loss"]
        series = {name: (steps, [record[name] for record in self.history]) for name in names}
        return curve_figure(series, "step", "validation")

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        hypotheses = self._translate(trainer, pl_module.best_model)
        record = {"step": trainer.global_step, "loss": pl_module.validation_loss(), **self._score(hypotheses)}
        best = self.best
        self.is_best = best is None or self._rank(record) > self._rank(best)
        self.history.append(record)
        if not trainer.is_global_zero:
            return
        self.say(self._summary(record, best))
        scalars = {f"validation/{name}": record[name] for name in ("loss", *self.columns)}
        log_scalars(trainer, scalars | {"validation/perplexity": math.exp(min(50.0, record["loss"]))})
        if self.n_samples:
            self._show_samples(trainer, hypotheses, pl_module.best_model)
        for logger in trainer.loggers:
            logger.save()
        self.before = hypotheses[: self.n_samples]

    def _translate(self, trainer: Trainer, model: Transformer) -> list[str]:
        """Translate greedily, each process a share; every process gets all translations."""
        rank, world_size = trainer.global_rank, trainer.world_size
        with torch.autocast(model.projection.weight.device.type, enabled=False):
            results = translate_ids(model, self.sources[rank::world_size], self.search)
        share = [clean_text(self.data.tgt_tokenizer.decode(hypotheses[0].ids)) for hypotheses in results]
        if world_size == 1:
            return share
        shares: list[list[str]] = [[] for _ in range(world_size)]
        torch.distributed.all_gather_object(shares, share)
        return [shares[i % world_size][i // world_size] for i in range(len(self.sources))]

    def _score(self, hypotheses: list[str]) -> Record:
        """Fill all columns of a record, and add the signature of the first metric."""
        record: Record = {}
        for suffix, parts in self.groups.items():
            scored = [
                _scores_of([(hypotheses[i], self.pairs[i]) for i in rows], direction.tgt, self.metrics)
                for direction, rows in parts
            ]
            record |= {name + suffix: round(fmean(part[name] for part in scored), 3) for name in self.scores}
            if self.metrics:
                record.setdefault("signature", scored[0]["signature"])
        return record

    def _summary(self, record: Record, best: Record | None) -> str:
        """One line: scores, those of corpora and directions, whether it is kept."""
        line = f"step {record['step']}: validation loss {record['loss']:.3f}"
        for name in self.scores:
            parts = [f"{suffix[1:]} {record[name + suffix]:.2f}" for suffix in self.groups if suffix]
            line += f"  {name} {record[name]:.2f}" + (f" ({', '.join(parts)})" if parts else "")
        if best is None:
            return f"{line}  (first: kept)"
        if self.is_best:
            return f"{line}  (best so far by {self.monitor}: kept)"
        return f"{line}  (not kept: {self.monitor} was {best[self.monitor]:.2f} at step {best['step']})"

    def _show_samples(self, trainer: Trainer, hypotheses: list[str], model: Transformer) -> None:
        """Show a table of translations and two maps of the last cross-attention."""
        step, tokenizers = trainer.global_step, (self.data.src_tokenizer, self.data.tgt_tokenizer)
        before = [*self.before, *[""] * self.n_samples]
        samples = list(zip(self.pairs, hypotheses, before, strict=False))[: self.n_samples]
        table = "| source | reference | hypothesis now | before |\n|---|---|---|---|"
        for pair, *texts in samples:
            cells = [text.replace("|", "\\|") for text in (pair.src, pair.tgt, *texts)]
            table += f"\n| {' | '.join(cells)} |"
        for board in boards(trainer):
            board.add_text("samples", table, step)
            for i, (_, hypothesis, _) in enumerate(samples[:2]):
                result = attended(model, tokenizers, self.sources[i], tokenizers[1].encode(hypothesis))
                weights, pieces = result.maps["cross"][-1], result.pieces
                picture = attention_figure(weights, pieces["tgt_out"], pieces["src"], title=f"step {step}")
                board.add_image(f"attention/{i + 1}", pixels(picture), step, dataformats="HWC")


def _groups(corpora: list[str], directions: list[Direction]) -> dict[str, list[tuple[Direction, list[int]]]]:
    """Group the rows to score: all as "", a corpus or direction as "_NAME".

    Each group has a part per direction, since a metric is one of a target language; its score is their mean.
    """
    n, names = len(directions), sorted(set(corpora))
    every = [(direction, list(range(i, len(corpora), n))) for i, direction in enumerate(directions)]
    groups = {"": every}
    for name in names if len(names) > 1 else ():
        groups[f"_{name}"] = [(to, [i for i in rows if corpora[i] == name]) for to, rows in every]
    for part in every if n > 1 else ():
        groups[f"_{part[0]}"] = [part]
    return groups


def select_pairs(pairs: Sequence[Pair], n: int) -> list[Pair]:
    """Select `n` pairs, the same in every run, in equal shares of each corpus."""
    by_corpus: dict[str, list[int]] = {}
    for i, pair in enumerate(pairs):
        by_corpus.setdefault(pair.corpus, []).append(i)
    rng, selected = np.random.default_rng(0), list[int]()
    smallest_first = sorted(by_corpus.values(), key=len)
    for k, members in enumerate(smallest_first):
        share = min(len(members), (n - len(selected)) // (len(smallest_first) - k))
        selected += rng.choice(members, share, replace=False).tolist()
    return [pairs[i] for i in sorted(selected)]


def _scores_of(rows: list[tuple[str, Pair]], tgt: str, metrics: Sequence[str]) -> Record:
    """Score translations of one direction, with the first metric's signature."""
    hypotheses = [hypothesis for hypothesis, _ in rows]
    references = [pair.references or (pair.tgt,) for _, pair in rows]
    scores = evaluate(hypotheses=hypotheses, references=references, tgt=tgt, metrics=metrics)
    record: Record = {name: round(score.score, 3) for name, score in scores.items()}
    n_exact = sum(h in known for h, known in zip(hypotheses, references, strict=True))
    record["exact"] = round(100 * n_exact / len(rows), 2)
    return record | ({"signature": scores[metrics[0]].signature} if metrics else {})
