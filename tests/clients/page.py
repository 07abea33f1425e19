"""Use the page in headless Chromium: python page.py URL FOLDER [axe.min.js]

The model must translate both directions. Screenshots in both themes and at a phone's width go to FOLDER.
"""

import re
import sys
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright


def use(page: Page, folder: Path, axe: Path | None) -> None:
    """Type, translate, look at pieces and search, copy, correct, swap."""
    page.get_by_label("Text to translate").press_sequentially("你好")
    output = page.locator("#output")
    expect(output).not_to_be_empty()
    expect(page.locator("#detected")).to_contain_text("Chinese")
    source, target = (page.locator("#sentences .pieces").nth(row).get_by_role("button").first for row in (0, 1))
    # Colours: of low probability; of attention, while the mouse is on a piece.
    expect(target).to_have_attribute("style", re.compile("--doubt"))
    target.hover()
    expect(source).to_have_attribute("style", re.compile("--hit"))
    expect(page.locator("#caption")).to_contain_text("probability")
    page.locator("#copy").click()
    expect(page.locator("#said")).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == output.inner_text()
    alternative = page.locator("#alternatives").get_by_role("button").first
    alternative.click()
    expect(page.get_by_label("Correct the translation")).to_have_value(alternative.inner_text())
    page.keyboard.press("Tab")
    page.locator("#beam").select_option("3")
    page.get_by_role("button", name="Show the search").click()
    expect(page.locator("#place")).to_contain_text("Step 1")
    page.locator("#forth").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#place")).to_contain_text("Step 2")
    page.get_by_label("Correct the translation").fill("Hi")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#thanks")).to_contain_text("Kept")
    assert page.locator("#curl").inner_text().startswith("curl http")
    page.screenshot(path=folder / "light.png", full_page=True)
    if axe:
        check_accessibility(page, axe)
    translation = output.inner_text()
    page.get_by_label("Swap languages").click()
    expect(page.get_by_label("Text to translate")).to_have_value(translation)
    expect(output).not_to_be_empty()
    expect(output).not_to_have_text(translation)
    page.get_by_label("Text to translate").fill("𰻝")
    expect(page.locator("#warnings")).to_contain_text("outside the vocabulary: 𰻝")


def check_accessibility(page: Page, axe: Path) -> None:
    page.evaluate(axe.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")["violations"]
    bad = [(each["id"], each["impact"], each["nodes"][0]["html"]) for each in found]
    assert not [each for each in bad if each[1] in ("serious", "critical")], bad
    print("axe-core:", bad or "no violation")


def main(url: str, folder: Path, axe: Path | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 900}, locale="en-GB", bypass_csp=False)
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        messages: list[str] = []
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: request.url.startswith((url, "data:")) or messages.append(request.url))
        page.goto(url)
        use(page, folder, axe)
        for theme in ("light", "dark"):
            page.get_by_role("button", name="Theme").click()
            assert page.evaluate("document.documentElement.dataset.theme") == theme
            if axe:
                check_accessibility(page, axe)
        page.screenshot(path=folder / "dark.png", full_page=True)
        page.get_by_role("button", name="中文").click()
        page.set_viewport_size({"width": 375, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
        page.screenshot(path=folder / "phone.png", full_page=True)
        browser.close()
    assert not messages, messages
    print("page: typed, translated, swapped; no console message, no address outside")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3:] else None)
