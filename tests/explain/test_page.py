"""The attention page: all weights, a self-contained file, and escaped text."""

import json
import re

import numpy as np
import torch
from markupsafe import escape

from dragoman.explain.trace import Attended, attention_page

SCRIPT = re.compile(r"<script\b[^>]*>(.*?)</script>", re.DOTALL)
HOSTILE = ["</script><script>alert(1)</script>", "<!--", "&lt;", "'\"", "{{ source }}", "\u2028", "</s>"]


def random_maps(n_src: int, n_tgt: int) -> dict[str, torch.Tensor]:
    random = np.random.default_rng(8)
    sizes = {"encoder": (n_src, n_src), "decoder": (n_tgt, n_tgt), "cross": (n_tgt, n_src)}
    return {kind: torch.from_numpy(random.dirichlet(np.ones(k), (2, 3, q))) for kind, (q, k) in sizes.items()}


def make_page(src: str, tgt: str) -> str:
    pieces = {"src": [src, "！", "</s>"], "tgt_in": ["<s>", tgt], "tgt_out": [tgt, "</s>"]}
    pair = Attended(random_maps(3, 2), pieces, torch.empty(0))
    return attention_page(pair, ("zh", "en"), source=src, translation=tgt).decode()


PLAIN = make_page("你好", "hello")


def test_page_holds_every_weight_and_piece() -> None:
    data = json.loads(SCRIPT.findall(PLAIN)[0])
    for kind, weights in random_maps(3, 2).items():
        np.testing.assert_allclose(np.array(data["weights"][kind]).reshape(weights.shape) / 1000, weights, atol=6e-4)
    assert data["pieces"] == {"src": ["你好", "！", "</s>"], "tgt_in": ["<s>", "hello"], "tgt_out": ["hello", "</s>"]}
    assert data["languages"] == ["zh", "en"]
    assert '<span lang="zh" dir="auto">你好</span> <span lang="en" dir="auto">hello</span>' in PLAIN


def test_script_finds_the_elements_it_names() -> None:
    script = SCRIPT.findall(PLAIN)[1]
    names = set(re.findall(r'(?:byId|getElementById)\("(\w+)"\)', script))
    names |= set(re.findall(r'"(\w+)"', re.search(r"\[(.*)\]\.map\(byId\)", script)[1]))  # type: ignore[index]
    assert len(names) == 9
    assert names <= set(re.findall(r'id="(\w+)"', PLAIN))


def test_text_never_becomes_markup() -> None:
    for text in HOSTILE:
        page = make_page(text, text)
        assert len(re.findall(r"<\w", page)) == len(re.findall(r"<\w", PLAIN)), text
        assert page.count(str(escape(text))) >= 2
        assert json.loads(SCRIPT.findall(page)[0])["pieces"]["src"][0] == text


def test_page_needs_no_network() -> None:
    assert not re.search(r"https?:|//[a-z]|@import|url\(|import\(|fetch\(|XMLHttpRequest|innerHTML", PLAIN)
    assert not re.search(r"<[^>]* (src|href)=", PLAIN)
    assert "content=\"default-src 'none';" in PLAIN
