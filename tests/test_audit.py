"""The audit tells what is vulnerable from what nobody could be asked about."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "audit.py"
SPEC = importlib.util.spec_from_file_location("audit", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
audit = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(audit)

CLEAN = {"name": "good", "version": "1.0", "vulns": []}
UNKNOWN = {"name": "private", "skip_reason": "Dependency not found"}
BAD = {
    "name": "bad",
    "version": "2.0",
    "vulns": [
        {"id": "CVE-2026-1", "fix_versions": ["2.1"]},
        {"id": "CVE-2026-2", "fix_versions": []},
    ],
}


def test_a_list_that_cannot_be_reached_is_no_clean_bill_and_no_failure() -> None:
    for found in ([], [UNKNOWN]):
        told, n_vulnerable = audit.verdict(found)
        assert told.startswith("skipped")
        assert n_vulnerable == 0


def test_without_pip_audit_it_is_skipped_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    audit.main()
    assert capsys.readouterr().out.startswith("skipped: pip-audit is not installed")


def test_a_vulnerable_version_is_named_with_the_release_that_mends_it() -> None:
    told, n_vulnerable = audit.verdict([CLEAN, UNKNOWN, BAD])
    assert n_vulnerable == 1
    assert "bad 2.0: CVE-2026-1, CVE-2026-2 (mended in 2.1)" in told
    assert "2 packages asked about, 1 with a known vulnerability; 1 unknown" in told


def test_all_clean_is_said_so() -> None:
    told, n_vulnerable = audit.verdict([CLEAN])
    assert n_vulnerable == 0
    assert "none with a known vulnerability" in told
