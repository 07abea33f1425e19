"""The doctor's door and its page: text stays text, nothing is fetched, nothing is overwritten unasked."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from doors import Door
from dragoman.doctor.page import page, summary
from planted import CorpusConfig, ask, clean_pairs, write

HOSTILE = ["</td><script>alert(1)</script>", "<img src=x onerror=alert(1)>",
    "@body@", "@title@", "&lt;b&gt;", '"', "\u202e", "\ud800"]  # fmt: skip


class Read(HTMLParser):
    """A page as a parser sees it."""

    def __init__(self, source: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(source.decode())
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Door:
    monkeypatch.delenv("DRAGOMAN_DATA", raising=False)
    write(tmp_path, [*clean_pairs(120), ("Good.", "好")])
    return Door("scripts/doctor.py", tmp_path, monkeypatch, capfdbinary)


FILES = ("--src-path", "a.zh", "--tgt-path", "a.en")


def test_the_page_needs_nothing_but_itself_and_runs_no_script(tmp_path: Path) -> None:
    read = Read(page(ask(write(tmp_path, clean_pairs(120)))))
    assert not {"script", "link", "img", "iframe", "object"} & set(read.tags)
    assert not [value for name, value in read.attributes if name in ("src", "href") or name.startswith("on")]
    policy = [value for name, value in read.attributes if name == "content" and "default-src" in str(value)]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


@pytest.mark.parametrize("text", HOSTILE)
def test_the_text_of_a_corpus_never_becomes_markup(text: str, tmp_path: Path) -> None:
    pairs = [*clean_pairs(60), (text, text), (f"好{text}", f"good{text}")]
    rows = [{"zh": src, "en": tgt} for src, tgt in pairs]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = Read(page(ask(CorpusConfig(path=str(tmp_path / "a.jsonl")))))
    assert not {"script", "img"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on")]
    shown = text.replace("\u202e", "⟨U+202E⟩").replace("\ud800", "?")
    assert shown in read.text


def test_every_finding_setting_and_suspect_is_on_the_page(tmp_path: Path) -> None:
    pairs = [*clean_pairs(120), ("Good.", "好"), ("這個國家的語言", "&amp;"), *clean_pairs(3)]
    report = ask(write(tmp_path, pairs))
    text = Read(page(report)).text
    for finding in report["findings"]:
        assert finding["told"] in text
    for setting in report["settings"]:
        assert setting["word"] in text
        assert setting["word"] in summary(report)
    for suspect in report["suspects"]:
        assert suspect["tgt"] in text


def test_one_command_leaves_a_page_and_its_json_and_says_where_they_are(doctor: Door) -> None:
    told = doctor(*FILES).out.decode()
    assert "121 of train" in told
    assert "swapped languages, first on line 121 of train" in told
    assert "doctor_a.html" in told
    report = json.loads((doctor.home / "doctor_a.json").read_text())
    assert report["findings"][0]["first"]["line"] == 121
    assert (doctor.home / "doctor_a.html").read_bytes() == page(report)


def test_a_report_is_replaced_only_when_that_was_asked_for(doctor: Door) -> None:
    kept = doctor.home / "doctor_a.json"
    kept.write_text("mine")
    assert "--overwrite" in doctor.refused(*FILES)
    assert kept.read_text() == "mine"
    assert not list(doctor.home.glob("*.part"))
    assert not (doctor.home / "doctor_a.html").exists()
    doctor(*FILES, "--overwrite")
    assert json.loads(kept.read_text())["format"] == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "which corpus"),
        (("absent.tsv",), "no corpus 'absent.tsv'"),
        (("--src-path", "a.zh"), "come together"),
        (("a.zh",), "of no known kind"),
        ((*FILES, "--src", "en"), "two different languages"),
        ((*FILES, "--output", "a.pdf"), "ends in .html"),
        ((*FILES, "--output", "no/where.html"), "cannot write"),
        (("--src-path", "a.zh", "--tgt-path", "short"), "drift near line"),
    ],
)
def test_mistakes_are_told_in_one_line_and_leave_nothing(
    doctor: Door, arguments: tuple[str, ...], told: str
) -> None:
    (doctor.home / "short").write_bytes(b"".join((doctor.home / "a.en").read_bytes().splitlines(True)[3:]))
    assert told in doctor.refused(*arguments)
    assert not list(doctor.home.glob("doctor_*"))


def test_the_examination_shows_a_bar_only_on_a_terminal(doctor: Door) -> None:
    assert "pairs/s" not in doctor(*FILES).err
