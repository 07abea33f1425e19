"""Validation: loss, metrics of greedy translations, samples, attention maps.

A record holds the loss, each metric, and `exact`, the percentage of translations that equal a reference. A model of
two directions has the mean of both as its score, and a score for each direction, such as bleu_zh_en. If the pairs
come from several corpora, there is also a score for each corpus, such as bleu_written.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer

from dragoman.config import Config, SearchConfig
from dragoman.data.datamodule import TranslationData
from dragoman.data.text import Pair, clean_text
from dragoman.errors import check_choice
from dragoman.explain.picture import attention_figure
from dragoman.explain.trace import attended
from dragoman.metrics import LOWER_IS_BETTER, Score, evaluate
from dragoman.model.transformer import Transformer
from dragoman.training.module import TranslationModule
from dragoman.training.progress import log_samples, report
from dragoman.translation.engine import translate_ids

Record = dict[str, Any]


class ValidationCallback(Callback):
    """Translate and score at each validation; `history` holds the records."""

    def __init__(self, data: TranslationData, config: Config, module: TranslationModule) -> None:
        self.data, self.config, self.module = data, config, module
        self.directions = data.directions
        self.metrics, self.n_samples = config.trainer.metrics, config.trainer.samples
        self.monitor, self.patience = config.training.monitor, config.training.patience
        # The directions alternate, so that the first samples show both. pairs[i::n] belong to direction i.
        n = len(self.directions)
        pairs = select_pairs(data.validation, config.trainer.validation_pairs)
        self.pairs = [p for pair in pairs for p in (pair, pair.swapped())[:n]]
        self.references = [pair.references or (pair.tgt,) for pair in self.pairs]
        self.groups = self._groups([pair.corpus for pair in self.pairs])
        self.scores = [*self.metrics, "exact"]
        self.columns = [name + suffix for suffix in self.groups for name in self.scores]
        check_choice("training.monitor", self.monitor, ["loss", *self.columns])
        encoded = data.src_tokenizer.encode_batch([pair.src for pair in self.pairs])
        tags = [data.src_tokenizer.tag(direction.tgt) for direction in self.directions]
        # Truncated (<EOS> is added later): a very long source takes minutes to search, and its maps gigabytes.
        self.sources = [[*tags[i % n], *ids][: config.data.longest - 1] for i, ids in enumerate(encoded)]
        self.history: list[Record] = []
        self.hypotheses: list[str] = []  # of the last validation

    def _groups(self, corpora: list[str]) -> dict[str, Sequence[int]]:
        """Return suffix of the scores, "" or "_NAME" of a corpus or direction -> its rows."""
        groups: dict[str, Sequence[int]] = {"": range(len(corpora))}
        if len(names := sorted(set(corpora))) > 1:
            groups |= {f"_{name}": [i for i, corpus in enumerate(corpora) if corpus == name] for name in names}
        if (n := len(self.directions)) > 1:
            groups |= {f"_{to}": range(i, len(corpora), n) for i, to in enumerate(self.directions)}
        return groups

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history = list(state_dict["history"])

    @property
    def best(self) -> Record | None:
        """The record of the best validation so far."""
        return max(self.history, key=self._rank, default=None)

    @property
    def is_exhausted(self) -> bool:
        """Whether to stop early: training.patience validations without a better one."""
        ranks = [self._rank(record) for record in self.history]
        return bool(self.patience and ranks) and len(ranks) - 1 - ranks.index(max(ranks)) >= self.patience

    def _rank(self, record: Record) -> tuple[float, float]:
        """Return a sort key, larger is better; of equal scores the lower loss wins."""
        sign = -1 if self.monitor.split("_")[0] in LOWER_IS_BETTER else 1
        value = -math.inf if self.monitor == "loss" else sign * record[self.monitor]
        return value, -record["loss"] if math.isfinite(record["loss"]) else -math.inf

    def translations(self) -> dict[str, dict[str, list[Any]]]:
        """Return sources, references and hypotheses of the last validation, by direction."""
        n, sources = len(self.directions), [pair.src for pair in self.pairs]
        columns: Any = {"sources": sources, "references": self.references, "hypotheses": self.hypotheses}
        return {str(to): {name: rows[i::n] for name, rows in columns.items()} for i, to in enumerate(self.directions)}

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.hypotheses = self._translate(trainer, pl_module.eval_model)
        record = {"step": trainer.global_step, "loss": pl_module.validation_loss(), **self._score()}
        self.history.append(record)
        if not trainer.is_global_zero:
            return
        report(self._summary(record))
        if self.n_samples and trainer.loggers:
            self._show_samples(trainer, pl_module.eval_model)
        scalars = {name: record[name] for name in ("loss", *self.columns)}
        scalars["perplexity"] = math.exp(min(50.0, record["loss"]))
        for logger in trainer.loggers:
            logger.log_metrics({f"validation/{name}": value for name, value in scalars.items()}, trainer.global_step)
            logger.save()

    def _translate(self, trainer: Trainer, model: Transformer) -> list[str]:
        """Translate greedily; processes share the work, and each returns all results."""
        n = trainer.world_size
        with torch.autocast(model.projection.weight.device.type, enabled=False):
            results = translate_ids(model, self.sources[trainer.global_rank :: n], SearchConfig(kind="greedy"))
        share = [clean_text(self.data.tgt_tokenizer.decode(hypotheses[0].ids)) for hypotheses in results]
        shares = [share] * n
        if n > 1:
            torch.distributed.all_gather_object(shares, share)
        return [shares[i % n][i // n] for i in range(len(self.sources))]

    def _score(self) -> Record:
        """Return the scores of all groups, each the mean of its directions."""
        record: Record = {"signatures": {}}
        for suffix, rows in self.groups.items():
            results = []
            for k, direction in enumerate(self.directions):
                part = [i for i in rows if i % len(self.directions) == k]
                if not part:
                    continue
                texts, references = [self.hypotheses[i] for i in part], [self.references[i] for i in part]
                scores = evaluate(hypotheses=texts, references=references, tgt=direction.tgt, metrics=self.metrics)
                n_exact = sum(text in known for text, known in zip(texts, references, strict=True))
                scores["exact"] = Score(name="exact", score=100 * n_exact / len(part), signature="")
                results.append(scores)
            for name in self.scores:
                record[name + suffix] = round(fmean(result[name].score for result in results), 3)
            for name in self.metrics:
                signatures = dict.fromkeys(result[name].signature for result in results)
                record["signatures"][name + suffix] = " and ".join(signatures)
        return record

    def _summary(self, record: Record) -> str:
        """Return one line with all scores, and whether the model is kept."""
        line = f"step {record['step']}: validation loss {record['loss']:.3f}"
        for name in self.scores:
            parts = [f"{suffix[1:]} {record[name + suffix]:.2f}" for suffix in self.groups if suffix]
            line += f"  {name} {record[name]:.2f}" + (f" ({', '.join(parts)})" if parts else "")
        best = self.best or record
        if best is record:
            return f"{line}  (best so far by {self.monitor}: kept)"
        return f"{line}  (not kept: {self.monitor} was {best[self.monitor]:.2f} at step {best['step']})"

    def _show_samples(self, trainer: Trainer, model: Transformer) -> None:
        """Log a table of translations, and last-layer cross-attention for two of them."""
        tokenizers = self.data.src_tokenizer, self.data.tgt_tokenizer
        table, pictures = [["source", "reference", "hypothesis"]], {}
        for i, (pair, hypothesis) in enumerate(zip(self.pairs[: self.n_samples], self.hypotheses, strict=False)):
            table.append([pair.src, pair.tgt, hypothesis])
            if i < 2:
                result = attended(model, tokenizers, self.sources[i], tokenizers[1].encode(hypothesis))
                weights, pieces, title = result.maps["cross"][-1], result.pieces, f"step {trainer.global_step}"
                pictures[f"attention/{i + 1}"] = attention_figure(weights, pieces["tgt_out"], pieces["src"], title)
        log_samples(trainer, table, pictures)


def select_pairs(pairs: Sequence[Pair], n: int) -> list[Pair]:
    """Select the same `n` pairs in every run, with equal shares for the corpora."""
    by_corpus: dict[str, list[int]] = {}
    for i, pair in enumerate(pairs):
        by_corpus.setdefault(pair.corpus, []).append(i)
    rng, selected = np.random.default_rng(0), list[int]()
    smallest_first = sorted(by_corpus.values(), key=len)
    for k, members in enumerate(smallest_first):
        share = min(len(members), (n - len(selected)) // (len(smallest_first) - k))
        selected += rng.choice(members, share, replace=False).tolist()
    return [pairs[i] for i in sorted(selected)]
