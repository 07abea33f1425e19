"""The page of attention: its numbers are the model's, its text stays text, and it needs nothing but itself."""

import fnmatch
import json
import re
import shutil
import subprocess
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.bundle import Bundle
from dragoman.errors import UserError
from dragoman.page import KINDS, TEMPLATE, attention_page
from dragoman.translator import Translator

HOSTILE = [
    "</script><script>alert(1)</script>", "<b>", "</h1>", "<!--", "<script", "]]>", "&lt;", "'\"", "@data@",
    "@source@", "\\u003c/script>", "\u2028", "\\", "${1}", "\ud800", "</s>",
]  # fmt: skip


class Read(HTMLParser):
    """A page as a parser sees it: its tags with attributes, and the text directly in each kind of element."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.inside: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(attrs)))
        if tag not in ("meta", "link", "img", "input", "br"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.inside.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts.setdefault(self.inside[-1], []).append(data)

    @property
    def spans(self) -> list[str]:
        return self.texts["span"]

    @property
    def maps(self) -> list[dict[str, Any]]:
        return json.loads(self.texts["script"][0])


def some_maps(n_src: int, n_tgt: int, n_layers: int = 2, n_heads: int = 3) -> dict[str, np.ndarray]:
    dice = np.random.default_rng(8)
    sizes = {"encoder": (n_src, n_src), "decoder": (n_tgt, n_tgt), "cross": (n_tgt, n_src)}
    return {kind: dice.dirichlet(np.ones(k), (n_layers, n_heads, q)) for kind, (q, k) in sizes.items()}


def page_of(src: list[str], tgt: list[str], source: str = "你好", translation: str = "hello") -> bytes:
    pieces = {"src": src, "tgt_in": ["<s>", *tgt[:-1]], "tgt_out": tgt}
    return attention_page(some_maps(len(src), len(tgt)), pieces, source=source, translation=translation)


PLAIN = page_of(["你", "好", "</s>"], ["▁hello", "</s>"])


def test_the_numbers_in_the_page_are_those_of_attention_map_for_every_layer_and_head(
    tiny_bundle: Bundle,
) -> None:
    seen = Translator(tiny_bundle).attend("我爱你。", "I love you.")
    found = Read(attention_page(seen.maps, seen.pieces, source="我爱你。", translation="I love you."))
    assert [each["name"] for each in found.maps] == [name for name, *_ in KINDS.values()]
    for kind, each in zip(KINDS, found.maps, strict=True):
        shape = (2, 4, len(each["rows"]), len(each["columns"]))
        shown = np.array(each["weights"]).reshape(shape) / 1000
        np.testing.assert_allclose(shown, seen.maps[kind].numpy(), atol=0.0005 + 1e-7)
    cross, encoder, decoder = found.maps
    assert cross["rows"] == decoder["rows"] == seen.pieces["tgt_out"]
    assert cross["columns"] == encoder["rows"] == encoder["columns"] == seen.pieces["src"]
    assert decoder["columns"] == seen.pieces["tgt_in"]
    assert (cross["rows_language"], cross["columns_language"]) == ("en", "zh")


def test_the_pair_stands_on_top_in_its_languages() -> None:
    found = Read(PLAIN)
    assert found.spans == ["你好", "hello"]
    assert [dict(attributes)["lang"] for tag, attributes in found.tags if tag == "span"] == ["zh", "en"]


def test_every_element_is_closed_and_every_label_and_id_the_script_asks_for_is_there() -> None:
    found = Read(PLAIN)
    assert found.inside == []
    ids = {dict(attributes).get("id") for _, attributes in found.tags}
    script = found.texts["script"][1]
    asked = set(re.findall(r'(?:at|getElementById)\("(\w+)"\)', script))
    asked |= set(re.findall(r'"(\w+)"', re.search(r"\[(.*)\]\.map\(at\)", script)[1]))  # type: ignore[index]
    assert len(asked) == 9
    assert asked <= ids


@pytest.mark.parametrize("text", HOSTILE)
def test_pieces_and_sentences_never_become_markup(text: str) -> None:
    found = Read(page_of([text, "好", "</s>"], [text, "</s>"], source=text, translation=text))
    assert found.tags == Read(PLAIN).tags
    mended = text.encode("utf-8", "replace").decode()
    assert ["".join(found.spans[:1]), "".join(found.spans[1:])] == [mended, mended]
    assert found.maps[1]["rows"][0] == text


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.sampled_from("<>/!-&;\"'@abcdtascript= \n\\"), min_size=1, max_size=40))
def test_no_mixture_of_marks_becomes_markup(text: str) -> None:
    found = Read(page_of([text, "</s>"], ["▁hello", "</s>"], source=text))
    assert found.tags == Read(PLAIN).tags
    assert found.maps[1]["rows"] == [text, "</s>"]


def test_the_page_needs_no_network_and_forbids_itself_to_ask_for_any() -> None:
    found = Read(PLAIN)
    assert not re.search(rb"https?:|//[a-z]|@import|url\(|import\(|fetch\(|XMLHttpRequest", PLAIN)
    assert not any(name in ("src", "href") for _, attributes in found.tags for name, _ in attributes)
    policy = next(dict(a)["content"] for t, a in found.tags if dict(a).get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "innerHTML" not in PLAIN.decode()


def test_a_hundred_pieces_make_a_page_of_a_few_megabytes_and_thousands_are_refused() -> None:
    def page(n: int, n_layers: int = 6, n_heads: int = 8) -> bytes:
        labels = [f"▁{n}" for n in range(n)]
        pieces = {"src": labels, "tgt_in": labels, "tgt_out": labels}
        maps = {kind: np.full((n_layers, n_heads, n, n), 1 / n) for kind in KINDS}
        return attention_page(maps, pieces, source="", translation="")

    assert len(page(100)) < 6_000_000
    with pytest.raises(UserError, match="shorter sentence"):
        page(1500, n_layers=1, n_heads=1)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_do_not_fit_their_labels_are_refused(kind: str) -> None:
    maps = some_maps(3, 2)
    maps[kind] = maps[kind][..., :-1, :]
    pieces = {"src": list("abc"), "tgt_in": list("ab"), "tgt_out": list("ab")}
    with pytest.raises(ValueError, match=f"{kind} weights .* do not fit"):
        attention_page(maps, pieces, source="", translation="")


def test_the_template_is_carried_by_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    carried = project["tool"]["setuptools"]["package-data"]["dragoman"]
    assert any(fnmatch.fnmatch(TEMPLATE.name, pattern) for pattern in carried)


@pytest.fixture(scope="module")
def node() -> str:
    return shutil.which("node") or pytest.skip("no node here to run the script with")


def run(node: str, expression: str) -> Any:
    """The value of an expression after the page's script, where there is no document; `maps` are the page's."""
    found = Read(PLAIN)
    program = (
        f"{found.texts['script'][1]}\nconst maps = {found.texts['script'][0]};\n"
        f"console.log(JSON.stringify({expression}));"
    )
    done = subprocess.run([node, "-"], input=program.encode(), capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_the_script_finds_each_weight_in_its_cell(node: str) -> None:
    weights = some_maps(3, 2)["cross"]
    every = "[0, 1].map(l => [0, 1, 2].map(h => [0, 1].map(r => [0, 1, 2].map(c => weight(maps[0], l, h, r, c)))))"
    np.testing.assert_allclose(run(node, every), weights, atol=0.0005 + 1e-7)
    assert run(node, "highest(maps[0], 1)") == pytest.approx(weights[1].max(), abs=0.0005 + 1e-7)
    assert run(node, "told(maps[0], 1, 2, 0, 1)") == f"▁hello → 好\n{weights[1, 2, 0, 1]:.3f}"


def test_the_keys_lead_to_every_cell_and_never_out_of_the_map(node: str) -> None:
    steps = {
        ("ArrowDown", 0, 0): [1, 0], ("ArrowDown", 1, 2): [1, 2],
        ("ArrowRight", 0, 0): [0, 1], ("ArrowRight", 1, 2): [1, 2],
        ("ArrowUp", 1, 2): [0, 2], ("ArrowUp", 0, 0): [0, 0],
        ("ArrowLeft", 1, 2): [1, 1], ("ArrowLeft", 0, 0): [0, 0],
        ("Home", 1, 2): [1, 0], ("End", 1, 0): [1, 2], ("Tab", 0, 0): None,
    }  # fmt: skip
    calls = ", ".join(f"moved({key!r}, {row}, {column}, 2, 3)" for key, row, column in steps)
    assert run(node, f"[{calls}]") == list(steps.values())
