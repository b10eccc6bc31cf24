"""`make dashboard`: play the scene on a server of its own, and take the picture."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from playwright.async_api import async_playwright

from chaos.server import own_server
from dashboard.panels import answers, panels
from dashboard.picture import WIDTH, page
from dashboard.scene import staged


async def _drawn(seconds: float, folder: Path) -> str:
    async with own_server() as server, staged(server.dsn, folder) as scene:
        await scene.play(seconds)
        end = time.time()
        shown = []
        for panel in panels():
            lines = [
                line
                for target in panel.targets
                for line in await answers(scene.prometheus, target, scene.started, end)
            ]
            shown.append((panel, lines))
    return page(shown, scene.started, scene.broken)


async def _photograph(html: str, picture: Path) -> None:
    chromium = shutil.which("chromium")
    assert chromium, "the picture needs chromium (Debian: apt-get install chromium)"
    async with async_playwright() as playwright:
        # Its sandbox does not work for root.
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shot = await browser.new_page(viewport={"width": WIDTH, "height": 800})
        await shot.set_content(html)
        await shot.screenshot(path=picture, full_page=True)
        await browser.close()


def main() -> None:
    """Take the picture."""
    parser = argparse.ArgumentParser(prog="make dashboard", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--picture", type=Path, default=Path("docs/pictures/dashboard.png"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stretto-") as folder:
        html = asyncio.run(_drawn(given.seconds, Path(folder)))
    asyncio.run(_photograph(html, given.picture))


if __name__ == "__main__":
    main()
