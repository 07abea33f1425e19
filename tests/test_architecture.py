"""The house keeps its floors: who may import whom, read from the imports themselves.

To remember it: data and model have never met, and nothing imports upwards. A module not placed here yet makes
a test fail, so that whoever adds one decides where it stands.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dragoman"
MODULES = sorted(PACKAGE.rglob("*.py"))
DOORS = [*ROOT.glob("*.py"), *sorted((ROOT / "scripts").glob("*.py"))]

# Room -> the rooms it may import, apart from itself and from floor 0's two words for everybody: errors, special.
EVERYWHERE = {"errors", "special", "languages"}
FLOORS = {
    # floor 0
    "dragoman": set(),  # the package itself
    "special": set(),
    "errors": set(),
    "languages": set(),
    "masks": set(),
    "metrics": set(),
    "picture": set(),
    "page": set(),
    "durable": set(),
    "untrusted": set(),
    "model_card": set(),
    "experiments": set(),
    "vectors": set(),
    # floor 1: text to batches, ids to logits
    "data": {"durable", "untrusted"},
    "model": {"masks"},
    # floor 2
    "search": set(),
    "description": {"model.shape", "data.tokenizer", "search.hypothesis", "durable", "untrusted"},
    "bundle": {"description", "model", "cost", "data.tokenizer", "durable", "untrusted", "model_card"},
    "attention_map": {"model", "masks"},
    "attended": {"attention_map", "model", "data.tokenizer"},
    "sentence_vectors": {"model", "masks"},
    "cost": {"model"},
    "torch_engine": {"model", "search", "masks", "data.collate"},
    "ctranslate2_file": {"model.shape", "untrusted"},
    "ctranslate2_engine": {
        "ctranslate2_file", "description", "model.shape", "search.hypothesis", "durable", "untrusted",
    },
    "engine": {"torch_engine", "ctranslate2_engine", "description", "search.hypothesis"},
    # floor 3
    "translator": {
        "description", "bundle", "engine", "torch_engine", "search.hypothesis", "attended", "sentence_vectors",
        "data.tokenizer", "data.sentences", "data.corpus",
    },
    # floor 4
    "training": {
        "data", "model", "search", "bundle", "torch_engine", "attended", "cost", "masks", "metrics", "picture",
        "durable", "vectors", "untrusted", "export",
    },
    "export": {
        "bundle", "description", "ctranslate2_engine", "ctranslate2_file", "torch_engine", "model", "search",
        "data.corpus", "durable", "untrusted",
    },
    "evaluation": {"data", "metrics", "durable", "search.hypothesis", "translator", "untrusted"},
    "doors": {"description", "search.hypothesis", "translator", "durable"},
    "doctor": {"data"},
    # floor 5
    "config": {"data", "model", "search", "training", "experiments", "untrusted"},
}  # fmt: skip
HEAVY = {"torch", "lightning", "matplotlib", "sacrebleu", "datasets", "numpy", "sentencepiece", "hydra"}


def imports(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    """The dotted names that a file imports; of `from a import b`, a.b. Those for annotations only do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for block in ast.walk(tree):
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            block.body = []
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the floor"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(path: Path) -> set[str]:
    """The modules of dragoman that a file imports, without the package's name: data.corpus, bundle ..."""
    found = set()
    for name in imports(path):
        head, _, rest = name.partition(".")
        if head == "dragoman" and not rest.startswith("__"):
            found.add(module_of(rest))
    return found


def module_of(name: str) -> str:
    """'data.corpus.Pair' -> 'data.corpus': the longest beginning that is a module."""
    parts = name.split(".")
    while parts and not (
        PACKAGE.joinpath(*parts).with_suffix(".py").exists() or PACKAGE.joinpath(*parts).is_dir()
    ):
        parts.pop()
    return ".".join(parts)


def room_of(path: Path) -> str:
    """The entry of FLOORS under which a file stands."""
    relative = path.relative_to(PACKAGE).with_suffix("")
    return "dragoman" if relative.name == "__init__" and len(relative.parts) == 1 else relative.parts[0]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_has_its_floor_and_imports_only_downwards(path: Path) -> None:
    room = room_of(path)
    assert room in FLOORS, f"{name_of(path)} has no place in FLOORS yet"
    allowed = FLOORS[room] | EVERYWHERE | {room}
    for module in ours(path):
        prefixes = {module, module.partition(".")[0]}
        assert prefixes & allowed, f"{name_of(path)} may not import dragoman.{module}"


def test_the_floors_have_no_cycle() -> None:
    above: dict[str, set[str]] = {
        room: {other.partition(".")[0] for other in others} for room, others in FLOORS.items()
    }
    while above:
        ground = {room for room, others in above.items() if not others & above.keys()}
        assert ground, f"a cycle among {', '.join(sorted(above))}"
        above = {room: others for room, others in above.items() if room not in ground}


def test_the_searches_see_a_step_and_never_a_model() -> None:
    for path in (PACKAGE / "search").glob("*.py"):
        assert not any(module.startswith("model") for module in ours(path)), name_of(path)


def test_lightning_is_met_in_training_and_the_data_module_only() -> None:
    for path in MODULES:
        if any(name.partition(".")[0] == "lightning" for name in imports(path)):
            assert room_of(path) == "training" or path.name == "datamodule.py", name_of(path)


def test_matplotlib_is_imported_by_picture_alone_and_never_at_the_top() -> None:
    for path in [*MODULES, *DOORS]:
        if any(name.partition(".")[0] == "matplotlib" for name in imports(path)):
            assert path.name == "picture.py", name_of(path)
        assert not any(name.startswith("matplotlib") for name in imports(path, top_level_only=True)), name_of(
            path
        )


def test_nothing_is_unpickled() -> None:
    for path in [*MODULES, *DOORS]:
        source = path.read_text(encoding="utf-8")
        for module in ("pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"):
            assert not any(name.partition(".")[0] == module for name in imports(path)), name_of(path)
        for call in ast.walk(ast.parse(source)):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "torch.load":
                options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
                assert options.get("weights_only") == "True", name_of(path)


def test_the_special_ids_are_written_in_one_place() -> None:
    for path in MODULES:
        if path.name == "special.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign):
                names = {target.id for target in node.targets if isinstance(target, ast.Name)}
                assert not names & {"PAD", "UNK", "BOS", "EOS"}, name_of(path)


@pytest.mark.parametrize(
    "door", ["doors.py", "experiments.py", "errors.py", "special.py", "durable.py", "model_card.py"]
)
def test_what_a_help_page_needs_loads_nothing_heavy(door: str) -> None:
    loaded = {name.partition(".")[0] for name in imports(PACKAGE / door, top_level_only=True)}
    assert not loaded & HEAVY


def test_the_data_room_needs_no_network_of_neurons() -> None:
    for path in (PACKAGE / "data").glob("*.py"):
        assert not any(name.startswith("torch.nn") for name in imports(path)), name_of(path)


@pytest.mark.parametrize("path", [*MODULES, *DOORS], ids=name_of)
def test_files_and_functions_can_be_held_in_the_head(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 350, f"{name_of(path)}: no file over 350 lines"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            n_lines = (node.end_lineno or 0) - node.lineno + 1
            assert n_lines <= 60, f"{name_of(path)}: {node.name} has {n_lines} lines, no function over 60"


@pytest.mark.parametrize("path", [*MODULES, *DOORS], ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    if not path.read_bytes():
        assert path.name == "__init__.py"
        return
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), name_of(path)


def test_there_are_no_junk_drawers() -> None:
    junk = {
        "utils",
        "util",
        "helpers",
        "common",
        "base",
        "core",
        "builder",
        "factory",
        "manager",
        "constants",
        "misc",
    }
    for path in [*MODULES, *DOORS]:
        parts = set(path.relative_to(ROOT).with_suffix("").parts)
        assert not parts & junk, name_of(path)
