"""Report of a run as one page, and a table of several runs.

Input: folders of runs; nothing is translated. The page (report.html) is self-contained, without scripts.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from sacrebleu import sentence_chrf

from dragoman.bundle import read_json
from dragoman.config import Config
from dragoman.errors import UserError
from dragoman.evaluation.scores import SCORES, of_evaluation
from dragoman.explain.cost import cost_table
from dragoman.explain.page import render
from dragoman.explain.picture import attention_figure, curve_figure
from dragoman.metrics import LOWER_IS_BETTER
from dragoman.training.run import flatten
from dragoman.translation.translator import Translator

N_SENTENCES = 10  # samples, and worst sentences


def read(run: Path) -> dict[str, Any]:
    """Read the record of a run. Raises UserError if it is not a run.

    `rows` are the translations of the best validation. `tests` are this validation and the evaluations; their `scores`
    are metric -> {"score", "signature"}.
    """
    metrics, config = read_json(run / "metrics.json"), yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    if not (best := metrics["best"]):
        raise UserError(f"{run}: no validation yet. Wait for the first one")
    rows = []
    for direction, texts in read_json(run / "validation.json").items():
        for source, references, hypothesis in zip(*texts.values(), strict=True):
            rows.append({"direction": direction, "source": source, "references": references, "hypothesis": hypothesis})
    pairs: Any = [(row["source"], row["references"]) for row in rows]
    scores = {name: {"score": best[name], "signature": signature} for name, signature in best["signatures"].items()}
    tests: list[dict[str, Any]] = [{"name": "validation", "pairs": pairs, "scores": scores}]
    for path in sorted(run.glob(f"evaluation/*/{SCORES}")):
        pairs, scores = of_evaluation(path.parent).pairs, read_json(path)["scores"]
        tests.append({"name": path.parent.name, "pairs": pairs, "scores": scores})
    cleaning = read_json(run / "cleaning.json")
    return {"metrics": metrics, "config": config, "tests": tests, "rows": rows, "cleaning": cleaning}


def page(run: Path, language: str = "en") -> bytes:
    """Return the report as HTML in UTF-8, in English (en) or Chinese (zh)."""
    record, translator = read(run), Translator.load(run, "cpu", engine="torch")
    rows = record["rows"]
    for row in rows:
        row["chrf"] = sentence_chrf(row["hypothesis"], row["references"]).score
    samples = rows[:: max(1, len(rows) // N_SENTENCES)][:N_SENTENCES]
    shortest = min(samples, key=lambda row: (not any(map(str.isalnum, row["source"])), len(row["source"])))
    pair = translator.attend(shortest["source"], shortest["hypothesis"], direction=shortest["direction"])
    history = record["metrics"]["validations"]
    steps = [each["step"] for each in history]
    content = record | {
        "language": language,
        "name": run.resolve().name,
        "samples": samples,
        "worst": sorted((row for row in rows if row["chrf"] < 100), key=lambda row: row["chrf"])[:N_SENTENCES],
        "challenges": {path.parent.name: read_json(path)["passed"] for path in run.glob("evaluation/*/challenge.json")},
        "curves": [
            curve_figure({name: (steps, [each[name] for each in history]) for name in names}, "step", title)
            for title, names in {"loss": ["loss"], "score": record["tests"][0]["scores"]}.items()
        ],
        "attention": attention_figure(pair.maps["cross"][-1], pair.pieces["tgt_out"], pair.pieces["src"]),
        "cost": cost_table(translator.model, [(1, 20, 20, 20)]),
        "settings": flatten(record["config"]) | record["metrics"].get("recipe", {}),
        "defaults": flatten(asdict(Config())),
        "advice": advice(record),
    }
    return render("evaluation/report.html", **content)


def advice(record: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of each advice, or a false value where it does not apply."""
    history, monitor = record["metrics"]["validations"], record["config"]["training"]["monitor"]
    cleaning, n_train = record["cleaning"].values(), record["cleaning"]["train"]["kept"]
    n_read, n_kept = (sum(counts.get(key, 0) for counts in cleaning) for key in ("read", "kept"))
    last, lowest = history[-1], min(history, key=lambda each: each["loss"])
    early = [history[0], *(each for each in history if each["step"] <= 0.8 * last["step"])][-1]
    gain = (last[monitor] - early[monitor]) * (-1 if monitor.split("_")[0] in {"loss", *LOWER_IS_BETTER} else 1)
    return {
        "longer": gain > 0.02 * abs(last[monitor]) and [each[monitor] for each in (early, last)],
        "overfit": last["loss"] > 1.02 * lowest["loss"] and str(lowest["step"]),
        "few": n_train < 100_000 and n_train,
        "dropped": n_kept < 0.9 * n_read and 1 - n_kept / n_read,
    }


def leaderboard(runs: Sequence[Path], levels: Sequence[float]) -> tuple[list[dict[str, str]], list[str]]:
    """Return a row for each run, the best first, and the signature of each column.

    A column holds the scores of one test set with one signature. Further columns of the same title are numbered.
    """
    rows, columns = list[dict[str, str]](), dict[tuple[str, ...], str]()
    for run in runs:
        record = read(run)
        metrics, corpus = record["metrics"], record["config"]["training"]["monitor"].partition("_")[2]
        row = {"run": str(run), "step": f"{metrics['best']['step']:,}", "minutes": f"{metrics['seconds'] / 60:.1f}"}
        for test in record["tests"]:
            # Two metrics, of the corpus that training.monitor names if any, such as bleu_written and chrf_written.
            names = [name for name in test["scores"] if name.endswith(corpus)] or list(test["scores"])
            for name in names[:2]:
                score, title = test["scores"][name], f"{test['name']} {name}"
                key = title, score["signature"], repr(test["pairs"])
                n = 1 + sum(other[0] == title for other in columns)
                column = columns.setdefault(key, title if n == 1 else f"{title} [{n}]")
                row[column] = f"{score['score']:.2f}"
                row.setdefault("signature", score["signature"])
                for level in levels if test is record["tests"][0] and name.startswith("bleu") else ():
                    # The validation before an adaptation (init_from) has no time.
                    times = [each.get("seconds", 0) / 60 for each in metrics["validations"] if each[name] >= level]
                    row |= {f"{column}: minutes to {level:g}": f"{times[0]:.1f}"} if times else {}
        rows.append(row)
    first = next(iter(columns.values()), "")
    lower_is_better = first.split(" ")[-1].split("_")[0] in LOWER_IS_BETTER
    rows.sort(key=lambda row: float(row.get(first, 0)), reverse=not lower_is_better)
    return rows, [f"{column}: {signature}" for (_, signature, _), column in columns.items()]
