"""Who can use the page: keyboards, screen readers, small screens, dark rooms. `audit.js` looks the page over."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install pelton[dev])")
from live_server import LiveServer, wait_until
from playwright.sync_api import expect
from scripted import make_engine, say

AUDIT = Path(__file__).with_name("audit.js").read_text(encoding="utf-8")
PHONE = {"viewport": {"width": 360, "height": 740}}


@pytest.fixture
def server(serve) -> LiveServer:
    return serve(make_engine(say("Water turns the wheel, and the wheel turns the mill."), num_blocks=64))


def open_everything(page) -> None:
    """Show all that can be folded, and a token's alternatives."""
    page.click("#key-button")
    page.evaluate("for (const node of document.querySelectorAll('details')) node.open = true")
    page.locator("#tokens .token-view:nth-child(2) .token").nth(2).hover()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("options", [{}, PHONE], ids=["wide", "phone"])
def test_nothing_keeps_people_out(server, open_page, ask, scheme: str, options: dict) -> None:
    page = open_page(server, color_scheme=scheme, **options)
    for is_used in (False, True):
        if is_used:
            ask(page, "Hi")
            expect(page.locator("#explanation .verdict").first).to_be_visible()
            open_everything(page)
        result = page.evaluate(AUDIT)
        assert result["found"] == []
        assert result["count"] > 30, "the audit must have seen the page's texts"


def test_the_audit_finds_what_is_wrong(server, open_page) -> None:
    page = open_page(server)
    page.evaluate(
        """() => {
          document.querySelector('.empty').style.color = '#ccc';
          document.querySelector('label[for=prompt]').remove();
          document.getElementById('send').textContent = '';
          document.getElementById('stop').id = 'send';
        }"""
    )
    text = "\n".join(page.evaluate(AUDIT)["found"])
    for part in ("contrast", "textarea#prompt.: no label", "no name", "id send occurs twice"):
        assert part in text


def test_a_phone_shows_all_of_it_without_scrolling_sideways(server, open_page, ask) -> None:
    page = open_page(server, **PHONE)
    ask(page, "Hi" * 60)
    expect(page.locator("#explanation .verdict").first).to_be_visible()
    open_everything(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    for canvas in page.locator("canvas").all():
        box = canvas.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360


def test_the_theme_follows_the_system_until_one_is_chosen(server, open_page) -> None:
    page = open_page(server, color_scheme="dark")
    get_paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(get_paper)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(get_paper)
    assert light != dark
    button = page.locator("#theme-button")
    button.click()
    expect(button).to_have_text("Theme: light")
    button.click()
    expect(button).to_have_text("Theme: dark")
    assert page.evaluate(get_paper) == dark
    page.reload()
    expect(button).to_have_text("Theme: dark")
    assert page.evaluate(get_paper) == dark
    button.click()
    assert page.evaluate(get_paper) == light


def test_charts_are_drawn_and_drawn_anew_in_another_theme(server, open_page, ask) -> None:
    page = open_page(server, "Canvas2D")  # reading pixels, which only this test does, has a warning
    ask(page, "Hi")
    expect(page.locator("#times .caption")).to_contain_text("As the engine saw it")
    before = [read_pixels(canvas) for canvas in page.locator("canvas").all()]
    assert len(before) == 4
    page.emulate_media(color_scheme="dark")
    for canvas, (_, light) in zip(page.locator("canvas").all(), before, strict=True):
        wait_until(lambda canvas=canvas, light=light: read_pixels(canvas)[1] != light, "other colours")


def read_pixels(canvas) -> tuple[int, int]:
    """Pixels of a canvas that are not see-through, at least 300, and the sum of their colours."""
    canvas.scroll_into_view_if_needed()
    count_pixels = """(canvas) => {
      const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      let count = 0, sum = 0;
      for (let i = 0; i < data.length; i += 4) {
        if (data[i + 3] > 0) { count++; sum += data[i] + data[i + 1] + data[i + 2]; }
      }
      return [count, sum];
    }"""
    wait_until(lambda: canvas.evaluate(count_pixels)[0] > 300, "the chart to be drawn")
    return tuple(canvas.evaluate(count_pixels))


def test_the_keyboard_reaches_everything_and_shows_where_it_is(server, open_page, ask) -> None:
    page = open_page(server)
    ask(page, "Hi")
    page.locator(".skip").focus()
    reached = []
    for _ in range(40):
        at = page.evaluate(
            """() => {
              const node = document.activeElement;
              const { outlineStyle, outlineWidth } = getComputedStyle(node);
              return [node.id || node.className || node.tagName, outlineStyle !== 'none' && outlineWidth !== '0px'];
            }"""
        )
        reached.append(at[0])
        assert at[1] or at[0] == "BODY", f"{at[0]} does not show that it has the focus"
        page.keyboard.press("Tab")
    assert reached[:3] == ["skip", "key-button", "theme-button"]
    assert {"regenerate", "clear", "log", "prompt", "send", "temperature", "schema"} <= set(reached)
    # One stop for all tokens of a list: arrow keys do the rest.
    expect(page.locator('#tokens .token[tabindex="0"]')).to_have_count(2)


def test_what_changes_is_said_once_and_not_token_by_token(server, open_page, ask) -> None:
    page = open_page(server)
    page.evaluate(
        """() => {
          window.said = [];
          for (const node of document.querySelectorAll('[role=status], [role=alert]'))
            new MutationObserver(() => window.said.push(node.textContent))
              .observe(node, { childList: true, characterData: true, subtree: true });
        }"""
    )
    ask(page, "Hi")
    assert page.evaluate("window.said.filter((text) => text !== '')") == ["Generating", "Finished after 53 tokens"]
    expect(page.locator("#log")).to_have_attribute("aria-live", "off")


def test_nothing_moves_for_who_asked_for_that(server, open_page) -> None:
    page = open_page(server, reduced_motion="reduce")
    names = page.evaluate(
        """() => {
          const node = document.getElementById('log').appendChild(document.createElement('div'));
          node.setAttribute('aria-busy', 'true');
          const text = node.appendChild(document.createElement('div'));
          text.className = 'turn-text';
          return [getComputedStyle(text, '::after').animationName, document.getAnimations().length];
        }"""
    )
    assert names == ["none", 0]
