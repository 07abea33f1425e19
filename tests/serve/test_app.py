"""The endpoints: LibreTranslate's interface as clients read it, and limits."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dragoman.data.readers import Columns, read_arrow
from dragoman.serve import app, wire
from dragoman.serve.models import Model

HELLO = {"q": "你好", "source": "zh", "target": "en"}
NO_TARGET = "is not available as a target language from"


def test_json_form_and_query_string_give_the_same(client: TestClient) -> None:
    answers = [client.post("/translate", **{way: HELLO}) for way in ("json", "data", "params")]
    answers.append(client.post("/translate", files={"x": b""}, data=HELLO | {"format": ""}))
    unescaped = "q=你好&source=zh&target=en".encode()  # as curl -d sends it
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answers.append(client.post("/translate", content=unescaped, headers=headers))
    assert {answer.text for answer in answers} == {'{"translatedText":"Hello"}'}


def test_spellings_of_chinese_are_accepted(client: TestClient) -> None:
    for code in ("zh", "ZH", "zh-Hans", "zh_hans", "zh-CN", "zh-SG", "cmn", "chi", "zho"):
        assert client.post("/translate", json=HELLO | {"source": code}).json() == {"translatedText": "Hello"}, code
    for code in ("zt", "zh-Hant", "zh-TW", "zh_HK"):
        answer = client.post("/translate", json=HELLO | {"source": code}).json()
        assert answer["translatedText"] == "Hello"
        assert "traditional" in answer["warnings"][0]


def test_lists_keep_their_number_and_order(client: TestClient) -> None:
    texts = ["你好", "", "谢谢", "…"]
    by_json = client.post("/translate", json=HELLO | {"q": texts}).json()
    assert by_json == client.post("/translate", data=HELLO | {"q": texts}).json()  # repeated fields
    single = [client.post("/translate", json=HELLO | {"q": text}).json() for text in ("你好", "谢谢")]
    assert by_json["translatedText"] == [single[0]["translatedText"], "", single[1]["translatedText"], "…"]
    assert client.post("/translate", json=HELLO | {"q": ["你好"]}).json()["translatedText"] == ["Hello"]
    weblate = {"api_key": "", "q": texts, "source": "zh-Hans", "target": "en"}
    assert client.post("/translate", json=weblate).json() == by_json


def test_auto_detects_each_text(client: TestClient) -> None:
    answer = client.post("/translate", json={"q": ["你好", "Hello"], "source": "auto", "target": "en"}).json()
    assert answer["translatedText"] == ["Hello", "Hello"]
    assert [each["language"] for each in answer["detectedLanguage"]] == ["zh-Hans", "en"]
    assert client.post("/detect", json={"q": "你好"}).json() == [{"confidence": 100.0, "language": "zh-Hans"}]
    assert client.post("/translate", json=HELLO | {"q": "123", "source": "auto"}).json()["translatedText"] == "123"
    assert client.post("/detect", json={"q": "123"}).json() == [{"confidence": 0.0, "language": "en"}]


def test_detection_and_direction_agree(client: TestClient) -> None:
    for text, language in (("日本語です", "zh-Hans"), ("用 Python 写代码", "zh-Hans"), ("Hello 你", "en")):
        answer = client.post("/translate", json={"q": text, "source": "auto", "target": "en"}).json()
        assert answer["detectedLanguage"] == client.post("/detect", json={"q": text}).json()[0]
        assert answer["detectedLanguage"]["language"] == language
        assert (answer["translatedText"] == text) == (language == "en")


def test_alternatives_differ_from_the_best(client: TestClient) -> None:
    answer = client.post("/translate", data=HELLO | {"alternatives": "3"}).json()
    every = [answer["translatedText"], *answer["alternatives"]]
    assert 2 <= len(every) == len(set(every)) <= 4


def test_white_space_and_tags_stay(client: TestClient) -> None:
    hello = client.post("/translate", json=HELLO | {"q": "\n 你好\r\n\n\t谢谢\n"}).json()["translatedText"]
    assert re.fullmatch(r"\n Hello\r\n\n\t\S.*\n", hello)
    html = "<p class='several words 你好'>你好<br/>\n<script>'你好'</script> a &lt; b</p><!-- <b> 好 --><i>你\n好</i>"
    request = HELLO | {"q": html, "format": "html", "source": "auto"}
    answer = client.post("/translate", json=request).json()["translatedText"]
    assert answer.startswith("<p class='several words 你好'>Hello<br/>\n<script>'你好'</script> ")
    assert re.search(r"<[^/pbs!i]", answer) is None
    assert re.search(r"</p><!-- <b> 好 --><i>\w.+</i>$", answer)
    html = "<code>你好</code><td>&nbsp;</td><b title='a > b'>你好</b> <img alt=\"x -> 好\">你好"
    answer = client.post("/translate", json=HELLO | {"q": html, "format": "html"}).json()["translatedText"]
    assert answer == html.replace("'>你好", "'>Hello").replace('">你好', '">Hello')
    assert [each["line"] for each in app.FORMATS["html"][0].finditer("I <3 you > me")] == ["I <3 you > me"]


ERRORS: list[tuple[Any, str]] = [
    ({}, "Invalid request: missing q parameter"),
    (HELLO | {"q": ""}, "Invalid request: missing q parameter"),
    (HELLO | {"q": []}, "Invalid request: missing q parameter"),
    ({"q": "x", "target": "en"}, "Invalid request: missing source parameter"),
    ({"q": "x", "source": "zh"}, "Invalid request: missing target parameter"),
    (HELLO | {"source": "zz"}, "zz is not supported"),
    (HELLO | {"target": "auto"}, "auto is not supported"),
    (HELLO | {"source": "en", "target": "zh"}, f"Chinese (zh) {NO_TARGET} English (en)"),
    ({"q": "Hi", "source": "auto", "target": "zh"}, f"Chinese (zh) {NO_TARGET} English (en)"),
    (HELLO | {"format": "xx"}, "xx format is not supported"),
    (HELLO | {"alternatives": 99}, "Invalid request: alternatives parameter: Input should be less than or equal to 9"),
    (HELLO | {"q": {"a": 1}}, "Invalid request: q parameter: Input should be a valid string"),
    (HELLO | {"q": "x" * 101}, "Invalid request: request (101) exceeds text limit (100)"),
    (["你好"], "Invalid request: the body is not a JSON object"),
]


def test_errors_have_the_words_of_libretranslate(
    serve: Callable[..., TestClient], golden_models: list[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = golden_models[0].translator.bundle
    monkeypatch.setattr(bundle, "directions", bundle.directions[:1])
    client = serve(max_chars=100)
    for body, text in ERRORS:
        answer = client.post("/translate", json=body)
        assert (answer.status_code, answer.json()) == (400, {"error": text})


def test_any_bytes_give_an_error_as_json(client: TestClient) -> None:
    bodies = (b"\xff\xfe", b"[" * 100_000, b'{"q": "\\ud800", "source": "zh", "target": "en"}', b"")
    kinds = ("application/json", "multipart/form-data", "multipart/form-data; boundary=x", "text/plain", "\xff")
    paths = ("/translate", "/detect", "/suggest", "/explain", "/trace", "/translate_file")
    for path, body, kind in ((path, body, kind) for path in paths for body in bodies for kind in kinds):
        answer = client.post(path, content=body, headers={"Content-Type": kind.encode("latin-1")})
        assert (answer.status_code, list(answer.json())) == (400, ["error"]), (path, body[:9], kind)
    for answer, code in ((client.get("/translate"), 405), (client.get("/nothing"), 404)):
        assert (answer.status_code, list(answer.json())) == (code, ["error"])


def test_limits_on_body_time_and_waiting(serve: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(wire, "MAX_BYTES", 100)
        assert serve().post("/translate", json=HELLO | {"q": "x" * 101}).status_code == 413
        assert serve().post("/translate_file", files={"file": b"x" * 101}).status_code == 413
        assert serve().post("/translate", content=iter([b"x" * 60] * 2)).status_code == 413
    with monkeypatch.context() as patch:
        patch.setattr(app, "MAX_REQUESTS", 1)
        codes = list[int]()
        second = lambda *_: codes.append(client.post("/detect", json=HELLO).status_code)  # noqa: E731
        patch.setattr("dragoman.serve.app.Service._run", second)
        client = serve()
        client.post("/translate", json=HELLO)
        assert codes == [429]
    monkeypatch.setattr(app, "MAX_SECONDS", 0.05)
    monkeypatch.setattr("dragoman.serve.app.Service._run", lambda self, options, texts: time.sleep(0.2))
    assert serve().post("/translate", json=HELLO).status_code == 503


def test_the_limit_of_characters_counts_files(serve: Callable[..., TestClient]) -> None:
    answer = serve(max_chars=5).post("/translate_file", data=HELLO, files={"file": ("a.txt", b"x" * 6)})
    text = "Invalid request: request (6) exceeds text limit (5)"
    assert (answer.status_code, answer.json()) == (400, {"error": text})
    answer = serve(max_chars=5).post("/translate", json=HELLO | {"q": [""] * 6})
    assert (answer.status_code, answer.json()) == (400, {"error": text})


def test_a_broken_engine_is_an_error_of_the_server(
    client: TestClient, golden_models: list[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(golden_models[0], "translator", None)
    answer = client.post("/translate", json=HELLO)
    assert (answer.status_code, answer.json()) == (500, {"error": "Internal server error"})
    monkeypatch.undo()
    assert client.post("/translate", json=HELLO).status_code == 200


def test_a_file_is_translated_and_downloaded(client: TestClient) -> None:
    answer = client.post("/translate_file", data=HELLO, files={"file": ("a.txt", "你好\n\n谢谢\n".encode())})
    answer = client.get(answer.json()["translatedFileUrl"])
    assert answer.text.startswith("Hello\n\n")
    assert "attachment" in answer.headers["Content-Disposition"]
    answer = client.post("/translate_file", data=HELLO, files={"file": ("a.html", "<b>你好</b>".encode())})
    assert client.get(answer.json()["translatedFileUrl"]).text == "<b>Hello</b>"
    assert client.get("/download_file/app.py").status_code == 404
    assert client.post("/translate_file", data=HELLO, files={"file": ("a.pdf", b"x")}).status_code == 400
    answer = client.post("/translate_file", data={"source": "zh", "target": "en"})
    assert answer.json() == {"error": "Invalid request: missing file parameter"}
    answer = client.post("/translate_file", data=HELLO, files={"file": ("a.txt", "你好".encode("gbk"))})
    assert (answer.status_code, answer.json()) == (400, {"error": "Invalid request: the file is not UTF-8"})


def test_training_reads_suggestions(client: TestClient, tmp_path: Path) -> None:
    for row in ({"q": "你好", "s": "Hi", "source": "zh"}, {"q": "Bye", "s": "再见", "source": "auto"}):
        target = "en" if row["s"] == "Hi" else "zh"
        assert client.post("/suggest", data=row | {"target": target}).json() == {"success": True}
    rows = read_arrow(tmp_path / "suggestions.jsonl", Columns("zh", "en"))
    assert list(rows) == [("你好", "Hi"), ("再见", "Bye")]


def test_information_for_clients(client: TestClient) -> None:
    languages = {each["code"]: each["targets"] for each in client.get("/languages").json()}
    assert languages == {"zh-Hans": ["en"], "zh": ["en"], "en": ["zh-Hans", "zh"]}
    assert client.get("/health").json()["status"] == "ok"
    assert client.get("/frontend/settings").json()["language"]["target"] == {"code": "en", "name": "English"}
    headers = {"Origin": "x", "Access-Control-Request-Method": "POST"}
    assert client.options("/translate", headers=headers).status_code == 200
    paths = client.get("/spec").json()["paths"]
    assert "422" not in json.dumps(paths)
    assert "text/plain" not in json.dumps(paths)  # errors are JSON at each address


def test_attention_and_search_are_explained(client: TestClient) -> None:
    (pair,) = client.post("/explain", json=HELLO).json()["sentences"]
    assert "".join(pair["target"]) == "▁Hello</s>"
    assert [len(row) for row in pair["attention"]] == [len(pair["source"])] * len(pair["target"])
    assert all(abs(sum(row) - 1) < 0.01 for row in pair["attention"])
    steps = client.post("/trace", json=HELLO | {"beam": 2}).json()["steps"]
    assert [step["next"] for step in steps] == pair["target"]


def test_the_page_needs_no_address_outside(client: TestClient) -> None:
    page = client.get("/").text
    assert "default-src 'none'" in page
    assert not re.search(r"https?://", page)
