"""Draws docs/pictures/chat.png: the page of the bot that `make demo` makes, after a question.

    python -m tests.docs.chat_picture runs/demo

needs Chromium with chromedriver, and selenium.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.by import By

import demo

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "chat.png"
QUESTION = "I sent the shoes back last week, where is my money?"


def main(folder: str) -> None:
    """Serve the bot in this folder, ask it, open what it considered, and keep what a browser shows."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    words = [sys.executable, "-m", "demo", "--folder", folder, "--chat"]
    with subprocess.Popen(words, start_new_session=True) as server:
        while not demo.answers(f"{demo.PAGE}ready"):
            time.sleep(0.5)
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        browser.implicitly_wait(60)
        browser.set_window_size(900, 900)
        browser.get(demo.PAGE)
        browser.find_element(By.ID, "message").send_keys(f"{QUESTION}\n")
        browser.find_element(By.CSS_SELECTOR, ".reply summary").click()
        time.sleep(1)
        browser.save_screenshot(str(PICTURE))
        browser.quit()
        os.killpg(server.pid, signal.SIGINT)  # the demo and the server that it started


if __name__ == "__main__":
    main(sys.argv[1])
