"""The layers of the package and its budgets, read from the source files."""

import ast
import graphlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dragoman"
MODULES = sorted(PACKAGE.rglob("*.py"))
PROGRAMS = [*ROOT.glob("*.py"), *sorted((ROOT / "scripts").rglob("*.py"))]

# A module may import its own package and the layers above it in this list, never one beside it.
LAYERS: list[set[str]] = [
    {"special", "errors"},
    {"languages", "files"},
    {"metrics", "config"},
    {"compose"},
    {"data", "model"},
    {"search"},
    {"bundle"},
    {"explain"},
    {"translation"},
    {"export"},
    {"training"},
    {"evaluation", "doctor"},
    {"commands", "serve"},
]
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return the syntax tree of a file, and all nodes in it."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    """Dotted names that a file imports; `from a import b` gives a.b."""
    module: Any = nodes(path)[0]
    for node in module.body if top_level_only else nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: no relative imports"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name: str) -> str:
    """'data.text.Pair' -> 'data.text': the longest beginning that is a module."""
    parts = name.split(".")
    while parts:
        path = PACKAGE.joinpath(*parts)
        if path.with_suffix(".py").exists() or path.is_dir():
            break
        parts.pop()
    return ".".join(parts)


def dependencies(path: Path) -> set[str]:
    """Modules of dragoman that a file imports, without the package's name."""
    ours = (name.removeprefix("dragoman.") for name in imports(path) if name.startswith("dragoman."))
    return {module for module in map(module_of, ours) if module}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def lines_of(paths: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def test_imports_point_downward() -> None:
    for path in MODULES:
        name = name_of(path)
        if name == "__init__":  # its public names are imported when they are used
            continue
        package = name.partition(".")[0]
        assert package in LAYER_OF, f"{name} has no layer yet"
        for module in dependencies(path):
            other = module.partition(".")[0]
            assert other == package or LAYER_OF[other] < LAYER_OF[package], f"{name} imports {module}"


def test_no_module_imports_itself_through_others() -> None:
    graph = {name_of(path): dependencies(path) - {name_of(path)} for path in MODULES if path.parent != PACKAGE}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_search_sees_no_model_and_no_data() -> None:
    for path in (PACKAGE / "search").glob("*.py"):
        assert not [m for m in dependencies(path) if m.partition(".")[0] in ("model", "data")], path.name


def test_data_needs_no_neural_network() -> None:
    for path in (PACKAGE / "data").glob("*.py"):
        assert not [name for name in imports(path) if name.startswith("torch.nn")], path.name


def test_settings_and_messages_need_no_torch() -> None:
    for module in ("config", "files", "errors", "languages", "metrics", "compose"):
        for name in imports(PACKAGE / f"{module}.py", top_level_only=True):
            assert name.partition(".")[0] not in {"torch", "lightning", "numpy", "datasets", "sacrebleu"}, module


def test_nothing_is_unpickled() -> None:
    for path in [*MODULES, *PROGRAMS]:
        for name in imports(path):
            assert name.partition(".")[0] not in {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
        for call in nodes(path):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "torch.load":
                options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert options.get("weights_only") == "True", path


def test_special_ids_are_written_in_one_place() -> None:
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, ast.Assign) and path.name != "special.py":
                names = {target.id for target in node.targets if isinstance(target, ast.Name)}
                assert not names & {"PAD", "UNK", "BOS", "EOS"}, path


BUDGETS = {
    "package": (MODULES, 8_650),
    "model and search": ([path for path in MODULES if path.parent.name in ("model", "search")], 1_150),
    "scripts": (list((ROOT / "scripts").rglob("*.py")), 3_500),
    "tests": (list((ROOT / "tests").rglob("*.py")), 11_000),
    "README.md": ([ROOT / "README.md"], 200),
    "README.zh.md": ([ROOT / "README.zh.md"], 200),
}


def test_lines_stay_within_the_budget() -> None:
    over = {part: lines_of(paths) for part, (paths, budget) in BUDGETS.items() if lines_of(paths) > budget}
    assert not over, over


def test_files_and_functions_are_short() -> None:
    for path in [*MODULES, *PROGRAMS]:
        limit = 300 if path in MODULES else 250
        assert lines_of([path]) <= limit, f"{path}: more than {limit} lines"
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                n_lines = (node.end_lineno or 0) - node.lineno + 1
                assert n_lines <= 60, f"{path}: {node.name} has {n_lines} lines, the limit is 60"


def test_docstrings_begin_with_a_short_line() -> None:
    for path in [*MODULES, *(ROOT / "scripts").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]:
        if "tests/golden" in path.as_posix():
            continue
        tree: Any = nodes(path)[0]
        assert ast.get_docstring(tree) or not tree.body or path not in MODULES, f"{path} has no docstring"
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node):
                first = str(ast.get_docstring(node)).splitlines()[0]
                assert len(first) <= 80, f"{path}: {first}"
