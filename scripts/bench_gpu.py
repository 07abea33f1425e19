"""How fast it trains on a GPU: python scripts/bench_gpu.py [--minutes 30]; see it work without one: --dry-run.

First the losses of all variants are held against each other, padded or packed, compiled or not; one that computes
something else is not measured. Then, the most telling cells first: small, base and big at one token budget; base
packed and padded, compiled and not; then base from 8k to 64k tokens a step. gpu_cells.py says what is measured, and
how.

Each cell is a process of its own and leaves a small file in the results folder: one that is there is not measured
again, so the same command goes on where it was stopped. A cell that failed, for want of memory say, is a result too;
remove its file to try again. table.md is written again after every cell.

The corpus is the largest Chinese-English one under DRAGOMAN_DATA, or where there is none the phrasebook, which comes
with the program.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dragoman.doors import Parser, open_door
from dragoman.errors import UserError
from trials import markdown, write

ROOT = Path(__file__).resolve().parents[1]
LARGEST_FIRST = ("subtitles", "tatoeba")  # of the corpora that DRAGOMAN_DATA may hold
PHRASEBOOK = ROOT / "data" / "phrasebook"
BUDGET, BUDGETS = 16384, (65536, 32768, 8192)

Spec = dict[str, Any]


def main() -> None:
    args = arguments()
    if not args.dry_run and args.device == "gpu" and not has_gpu():
        print(
            "torch finds no CUDA device here, so there is nothing to measure; --dry-run shows how it would go"
        )
        return
    bench = Bench(args)
    bench.run()
    print(bench.table())
    if bench.disagreeing():
        sys.exit(1)


def arguments() -> argparse.Namespace:
    parser = Parser("bench_gpu.py", __doc__ or "")
    parser.add_argument("--minutes", type=float, default=25, help="begin nothing after so many (default: 25)")
    parser.add_argument("--seconds", type=float, default=15, help="to measure a cell (default: 15)")
    parser.add_argument("--limit", type=float, default=240, help="seconds after which a cell is given up")
    parser.add_argument("--corpus", help="a folder, as in data.corpora (default: see above)")
    parser.add_argument("--vocab-size", type=int, help="default: 16000, or 4000 for the phrasebook")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "data" / "cache", help="where corpora lie prepared"
    )
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "bench_gpu", help="runs/bench_gpu")
    parser.add_argument("--device", default="gpu", choices=("gpu", "cpu"), help="default: gpu")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp16", "32"), help="default: bf16")
    parser.add_argument(
        "--dry-run", action="store_true", help="the whole way in small, on a CPU, figures worthless"
    )
    args = parser.parse()
    if args.dry_run:
        args.device, args.precision, args.seconds = "cpu", "32", min(args.seconds, 1.0)
        args.corpus = args.corpus or str(PHRASEBOOK / "handwritten" / "people.tsv")
        args.vocab_size = args.vocab_size or 900
        if args.results == parser.get_default("results"):
            args.results = args.results.with_name("bench_gpu_dry")
    root = Path(os.environ.get("DRAGOMAN_DATA", ""))
    there = [
        root / name for name in LARGEST_FIRST if os.environ.get("DRAGOMAN_DATA") and (root / name).is_dir()
    ]
    args.corpus = args.corpus or str((there or [PHRASEBOOK])[0].resolve())
    args.vocab_size = args.vocab_size or (4000 if args.corpus == str(PHRASEBOOK) else 16000)
    return args


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


class Bench:
    """The cells of one machine and corpus, their order, and their results so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.folder, self.start = args, args.results, time.monotonic()
        self.settings: Spec = {
            "corpus": args.corpus, "vocab_size": args.vocab_size, "device": args.device, "precision": args.precision,
            "max_length": 60 if args.dry_run else 256,
            "matrix": 256 if args.dry_run else 8192 if args.device == "gpu" else 1024,
            "changes": ["data.tokenizer.kind=char"] if args.dry_run else [],
        }  # fmt: skip
        self.machine = self.result(
            "machine", {"kind": "packings", "size": "tiny", "tokens": BUDGET}, limit=None
        )
        if "failed" in self.machine:
            raise UserError(f"cannot begin: {self.machine['failed']}")
        # To compile takes a CPU minutes, and there is nothing to see that a GPU would not do otherwise.
        self.compiles = [False] if args.dry_run else [False, True]
        self.packed = "rows" if self.machine["why_not_flat"] else "flat"

    def cells(self) -> dict[str, Spec]:
        """All of them, the most telling first."""
        sizes: tuple[str, ...] = ("small", "base", "big")
        budgets: tuple[int, ...] = BUDGETS
        one, budget, packings = "base", BUDGET, list(dict.fromkeys((self.packed, "off", "rows")))
        if self.args.dry_run:
            sizes, one, budgets, budget = ("tiny",), "tiny", (1024,), 512
        wanted = [(size, budget, self.packed, False) for size in sizes]
        for compile in self.compiles:
            wanted += [(one, budget, packing, compile) for packing in packings]
        for tokens in budgets:
            for compile in self.compiles:
                wanted += [(one, tokens, packing, compile) for packing in (self.packed, "off")]
        return {
            f"{size}-{tokens}-{packing}-{'compiled' if compile else 'eager'}": {
                "kind": "speed", "size": size, "tokens": tokens, "packing": packing, "compile": compile
            }
            for size, tokens, packing, compile in dict.fromkeys(wanted)
        }  # fmt: skip

    def run(self) -> None:
        """Measure what has not been measured."""
        print(f"{self.machine['device']}, torch {self.machine['torch']}, {self.machine['pairs']:,} pairs, "
              f"vocabulary {self.machine['vocabulary']:,}")  # fmt: skip
        if self.machine["why_not_flat"]:
            print(f"packed means rows: {self.machine['why_not_flat']}")
        packings = list(dict.fromkeys(("off", self.packed, "rows")))
        checked = {"kind": "losses", "packings": packings, "compiles": self.compiles}
        size, tokens = ("tiny", 512) if self.args.dry_run else ("small", 4096)
        found = self.result("losses", {**checked, "size": size, "tokens": tokens}, limit=900)
        for title, values in found.get("losses", {}).items():
            told = ", ".join(f"{x:.4f}" for x in values) if isinstance(values, list) else values
            turned = f"  gradient 1 - {1 - found['cosines'][title]:.0e}" if title in found["cosines"] else ""
            print(f"losses of {title:<16} {told}{turned}{'' if found['agree'][title] else '   DISAGREES'}")
        if "failed" in found:
            print(f"the losses could not be compared: {found['failed']}")
        wrong = self.disagreeing()
        for name, cell in self.cells().items():
            variant = f"{cell['packing']}, {'compiled' if cell['compile'] else 'eager'}"
            if variant in wrong:
                print(f"{name}: not measured, its losses are not those of the others")
                continue
            if not (self.folder / f"{name}.json").exists() and self.late():
                print(f"{self.args.minutes:g} minutes are over; the same command goes on")
                return
            found = self.result(name, cell, limit=self.args.limit)
            self.folder.mkdir(parents=True, exist_ok=True)
            write(self.folder / "table.md", self.table())
            told = found.get("failed") or f"{found['tokens_per_second']:,} target tokens/s"
            print(f"{name}: {told}", flush=True)

    def late(self) -> bool:
        return time.monotonic() - self.start > 60 * self.args.minutes

    def disagreeing(self) -> list[str]:
        """The variants whose losses are not those of the others."""
        path = self.folder / "losses.json"
        found = json.loads(path.read_text(encoding="utf-8"))["result"] if path.exists() else {}
        return [title for title, agrees in found.get("agree", {}).items() if not agrees]

    def result(self, name: str, cell: Spec, *, limit: float | None) -> dict[str, Any]:
        """Of a cell: as its file has it, or measured now. Raises UserError for one of other settings."""
        path, cell = self.folder / f"{name}.json", self.settings | cell
        if path.exists():
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["cell"] != cell:
                raise UserError(
                    f"{path} was measured with other settings than now: move the folder away, or name another --results"
                )
            return record["result"]
        found = self.measured(cell, limit)
        self.folder.mkdir(parents=True, exist_ok=True)
        write(path, json.dumps({"cell": cell, "result": found}, indent=1) + "\n")
        return found

    def measured(self, cell: Spec, limit: float | None) -> dict[str, Any]:
        """By gpu_cells.py in a process of its own; {"failed": why} where it does not come back with figures."""
        with tempfile.TemporaryDirectory(prefix="dragoman-gpu-") as name:
            spec, result = Path(name) / "spec.json", Path(name) / "result.json"
            how = {
                "seconds": self.args.seconds, "warm_up": 3 if self.args.dry_run else 20 if cell.get("compile") else 10,
                "workers": 2 if self.args.device == "gpu" else 0, "cache": str(self.args.cache), "compile": False,
            }  # fmt: skip
            spec.write_text(json.dumps(how | cell), encoding="utf-8")
            command = [sys.executable, str(ROOT / "scripts" / "gpu_cells.py"), str(spec), str(result)]
            log = Path(name) / "log"
            try:
                with log.open("wb") as file:
                    subprocess.run(
                        command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, timeout=limit, check=False
                    )
            except subprocess.TimeoutExpired:
                return {"failed": f"not done after {limit:.0f} seconds"}
            if result.exists():
                return json.loads(result.read_text(encoding="utf-8"))
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            return {"failed": lines[-1] if lines else "ended without a word"}

    def table(self) -> str:
        """Markdown, the cells in their order."""
        rows = []
        for name, cell in self.cells().items():
            path = self.folder / f"{name}.json"
            if not path.exists():
                continue
            found = json.loads(path.read_text(encoding="utf-8"))["result"]
            what = [cell["size"], f"{cell['tokens']:,}", cell["packing"], "yes" if cell["compile"] else "no"]
            if "failed" in found:
                rows.append([*what, found["failed"][:80].replace("|", "/"), *["-"] * 5])
                continue
            spread = f"{found['slowest']:,} to {found['fastest']:,}"
            rate = f"{found['tokens_per_second']:,} ({spread})"
            share = f"{found['utilisation']:.1%} of {found['ceiling_tflops']:,.1f}"
            numbers = [rate, share, f"{found['padding']:.1%}", f"{found['peak_gb']:.2f}"]
            rows.append([*what, *numbers, f"{found['vocabulary']:,}", f"{found['warm_up_seconds']:.0f}"])
        header = [
            "model",
            "tokens a step",
            "packing",
            "compiled",
            "target tokens/s (slowest, fastest window)",
        ]
        header += ["utilisation of TFLOP/s", "padding", "peak GB", "vocabulary", "warm-up, s"]
        title = f"{self.machine['device']}, torch {self.machine['torch']}, {self.args.precision}, "
        title += f"{Path(self.args.corpus).name} ({self.machine['pairs']:,} pairs)\n\n"
        return title + markdown(header, rows)


if __name__ == "__main__":
    open_door(main)
