"""Known vulnerabilities in what `make setup` installs: make audit

Asks the public list of advisories (through pip-audit) about every version pinned in constraints.txt. Where the list
cannot be asked nothing is known, and that is said; it is no reason to fail. Leaves with 1 when something is found.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from dragoman.doors import open_door

PINS = Path(__file__).resolve().parents[1] / "constraints.txt"


def main() -> None:
    if importlib.util.find_spec("pip_audit") is None:
        print("skipped: pip-audit is not installed, and could not be fetched from here")
        return
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(PINS), "--no-deps", "--disable-pip"]
    done = subprocess.run(
        [*command, "--format", "json", "--progress-spinner", "off"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):  # it gave up before it had anything to tell
        found = []
    told, n_vulnerable = verdict(found)
    print(told)
    if not found and done.stderr.strip():
        print(f"pip-audit said: {done.stderr.strip().splitlines()[-1]}")
    sys.exit(1 if n_vulnerable else 0)


def verdict(packages: list[dict[str, Any]]) -> tuple[str, int]:
    """What to say of pip-audit's findings, and how many packages have a known vulnerability."""
    asked = [package for package in packages if "skip_reason" not in package]
    if not asked:
        return "skipped: the list of known vulnerabilities could not be asked from here", 0
    lines, vulnerable = [], [package for package in asked if package["vulns"]]
    for package in vulnerable:
        names = ", ".join(known["id"] for known in package["vulns"])
        mended = sorted({version for known in package["vulns"] for version in known["fix_versions"]})
        lines.append(
            f"{package['name']} {package['version']}: {names} (mended in {', '.join(mended) or 'no release yet'})"
        )
    lines.append(
        f"{len(asked)} packages asked about, {len(vulnerable) or 'none'} with a known vulnerability; "
        f"{len(packages) - len(asked)} unknown to the list"
    )
    return "\n".join(lines), len(vulnerable)


if __name__ == "__main__":
    open_door(main)
