"""A real browser that looks at a page and reports errors, requests, and text that is unreadable or overlaps."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import support

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")
# What WCAG 2 asks for at level AA, of text and of what is drawn.
TEXT_CONTRAST, DRAWN_CONTRAST = 4.5, 3.0

# Gives complaints of what is laid out.
LOOK = """
([textContrast, drawnContrast]) => {
  const complaints = [];
  const numbers = (colour) => (colour.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const luminance = (colour) => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = numbers(colour).slice(0, 3).map((value) => linear(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const isClear = (colour) => colour === 'none' || colour === 'transparent' || numbers(colour)[3] === 0;
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!isClear(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const isShown = (element) => element.checkVisibility() && element.getBoundingClientRect().width > 0;

  const width = document.documentElement.scrollWidth;
  if (width > innerWidth) complaints.push(`the page is ${width} wide, the window ${innerWidth}`);
  for (const element of document.querySelectorAll('h1, h2, h3, p, li, th, td, summary, figure svg text, .legend span')) {
    if (!isShown(element) || !element.textContent.trim()) continue;
    const style = getComputedStyle(element);
    const colour = element instanceof SVGElement ? style.fill : style.color;
    const ratio = contrast(colour, behind(element));
    if (ratio < textContrast) complaints.push(`"${element.textContent.slice(0, 40)}" has a contrast of ${ratio.toFixed(1)}`);
  }
  const plots = [...document.querySelectorAll('figure svg')];
  for (const [nth, plot] of plots.entries()) {
    const of = (text) => complaints.push(`plot ${nth}: ${text}`);
    const frame = plot.getBoundingClientRect();
    if (!isShown(plot) || frame.width < 200 || frame.height < 100) of(`is ${frame.width} by ${frame.height}`);
    const shapes = [...plot.querySelectorAll('rect, circle, polyline, polygon')].map((shape) => {
      const style = getComputedStyle(shape);
      return isClear(style.fill) ? style.stroke : style.fill;
    });
    // Lines that help the eye may be pale; the colours of what is shown may not.
    const seen = shapes.filter((colour) => !isClear(colour) && contrast(colour, behind(plot)) >= drawnContrast);
    if (!seen.length) of('shows nothing that stands out');
    const texts = [...plot.querySelectorAll('text')].filter((text) => text.textContent.trim());
    const boxes = texts.map((text) => [text.textContent.trim(), text.getBoundingClientRect()]);
    for (const [at, [name, box]] of boxes.entries()) {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        of(`"${name}" is cut off`);
      for (const [other, its] of boxes.slice(0, at))
        if (box.left < its.right && its.left < box.right && box.top + 2 < its.bottom && its.top + 2 < box.bottom)
          of(`"${name}" runs into "${other}"`);
    }
  }
  return {complaints, plots: plots.length, text: document.body.innerText, background: getComputedStyle(document.body).backgroundColor};
}
"""


@contextmanager
def browser() -> Iterator[Any]:
    """A browser, in processes of its own."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if not program:
        pytest.skip("needs a browser: apt-get install chromium-headless-shell")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: make test installs it")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, timeout=support.LONG_S * 1000)
        try:
            yield opened
        finally:
            opened.close()


def look(opened: Any, file: Path, scheme: str, width: int = 1280, screenshot: Path | None = None) -> dict[str, Any]:  # noqa: ANN401  (typed only where it is installed)
    """Returns facts of a page in a light or dark browser: `complaints`, number of `plots`, `text`, `background`."""
    page = opened.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(support.LONG_S * 1000)
    said: list[str] = []
    page.on("console", lambda message: said.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("request", lambda request: said.append(f"request: {request.url}"))
    page.goto(file.as_uri(), wait_until="load")
    seen: dict[str, Any] = page.evaluate(LOOK, [TEXT_CONTRAST, DRAWN_CONTRAST])
    if screenshot:
        page.screenshot(path=screenshot, full_page=True)
    page.close()
    own = f"request: {file.as_uri()}"
    assert own in said, said
    seen["complaints"] += [line for line in said if line != own]
    return seen
