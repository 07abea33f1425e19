"""Mutation testing: python scripts/bench/mutants.py [--only NAME ...]

Each line of mutants.tsv is a mutant: name, file under src/dragoman (or scripts/), old text, new text, and tests. It is
written into a temporary copy of the checkout, where these tests run up to the first that fails; if none fails, the
mutant survives. runs/bench/mutants.json holds the dead ones: the same command resumes, without the file it begins anew.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from dragoman import files
from dragoman.commands.cli import Parser, command
from dragoman.errors import UserError

ROOT, RESULTS = Path(__file__).resolve().parents[2], Path("runs/bench/mutants.json")
LEFT_OUT = shutil.ignore_patterns(".*", "runs", "cache", "__pycache__", "*.egg-info")


@command
def main(argv: list[str]) -> None:
    lines = Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8").splitlines()
    table = {line.split("\t")[0]: line.split("\t")[1:] for line in lines if line and line[0] != "#"}
    parser = Parser(__doc__)
    parser.add_argument("--only", nargs="+", default=list(table), choices=table, metavar="NAME", help="mutants (all)")
    args = parser.parse_args(argv)
    dead = json.loads(RESULTS.read_bytes()) if RESULTS.exists() else {}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(ROOT, Path(folder, "copy"), ignore=LEFT_OUT))
        waiting = [name for name in args.only if dead.get(name) != table[name]]
        tests = sorted({test for name in waiting for test in table[name][3].split()})
        if waiting and run(copy, tests):
            raise UserError("mutants: the tests fail without a mutant. Run `make test`")
        for name in waiting:
            if dies := try_one(copy, *table[name]):
                dead[name] = table[name]
                files.write(RESULTS, json.dumps(dead, indent=1).encode())
            print(f"{'dies' if dies else 'LIVES':6}{name}", flush=True)
    alive = [name for name in args.only if dead.get(name) != table[name]]
    print(f"{len(args.only)} mutants, {len(alive)} alive", *alive)


def try_one(copy: Path, path: str, old: str, new: str, tests: str) -> bool:
    """Run the tests with one mutant in the copy; return whether they failed."""
    file = copy / path if path.startswith("scripts/") else copy / "src" / "dragoman" / path
    text = file.read_text(encoding="utf-8")
    try:
        file.write_text(text.replace(old, new), encoding="utf-8")
        return run(copy, tests.split())
    finally:
        file.write_text(text, encoding="utf-8")


def run(copy: Path, tests: list[str]) -> bool:
    """Run tests of the copy; return whether one failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-m", "not slow and not gpu", "-p", "no:cacheprovider", *tests]
    # No bytecode: that of a mutant could pass for the next one's, if their files have one size.
    variables = os.environ | {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        process = subprocess.run(command, cwd=copy, env=variables, capture_output=True, timeout=600, check=False)
    except subprocess.TimeoutExpired:
        return True  # a mutant that runs for ever counts as noticed
    if process.returncode not in (0, 1):
        raise UserError(f"mutants.tsv: pytest fails for {' '.join(tests)}. Name tests that exist")
    return process.returncode == 1


if __name__ == "__main__":
    sys.exit(main())
