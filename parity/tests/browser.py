"""A real headless Chromium for tests of pages: DevTools messages over two pipes, nothing needed beside the browser.

with Browser() as browser:
    browser.open("file:///tmp/page.html")
    browser.run("document.title")
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
REQUIRED = "required"
NO_BROWSER = (
    "NO BROWSER: the HTML report was not looked at. Run `apt-get install -y chromium`, or set PARITY_BROWSER to the "
    f"path of a Chromium or Chrome; PARITY_BROWSER={REQUIRED} makes this an error"
)


def find_browser() -> str | None:
    """$PARITY_BROWSER where it is a path, or a Chromium on the path. Raises FileNotFoundError where one is required."""
    named = os.environ.get("PARITY_BROWSER")
    if named and named != REQUIRED:
        return named
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None and named == REQUIRED:
        raise FileNotFoundError(NO_BROWSER)
    return found


class Browser:
    """One page of a headless Chromium. requested: the addresses that it asked for; errors: what its scripts threw."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        self.size = width, height
        self.requested: list[str] = []
        self.errors: list[str] = []
        self._number = 0
        self._session = ""

    def __enter__(self) -> Browser:
        program = find_browser() or pytest.skip(NO_BROWSER)  # said once more, in red, at the end of the run
        self._profile = tempfile.mkdtemp(prefix="parity-browser-")
        their_in, our_out = os.pipe()
        our_in, their_out = os.pipe()
        # Chromium reads DevTools messages from descriptor 3 and writes them to 4, each ended by a zero byte.
        command = (
            f"exec {shlex.quote(program)} --headless --no-sandbox --disable-gpu --remote-debugging-pipe --no-first-run "
            f"--disable-dev-shm-usage --user-data-dir={self._profile} about:blank 3<&{their_in} 4>&{their_out}"
        )
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            pass_fds=(their_in, their_out),
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(their_in)
        os.close(their_out)
        self._out, self._in = os.fdopen(our_out, "wb"), os.fdopen(our_in, "rb")
        target = next(t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.resize(*self.size)
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(BrokenPipeError, EOFError):
            self._session = ""
            self.send("Browser.close")
        self._process.wait()
        self._out.close()
        self._in.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _messages(self) -> Iterator[dict[str, Any]]:
        said = bytearray()
        while byte := self._in.read(1):
            if byte != b"\0":
                said += byte
                continue
            yield json.loads(said)
            said.clear()
        raise EOFError("the browser ended")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a DevTools command and wait for its answer; events on the way are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        for answer in self._messages():
            self._note(answer)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
        raise EOFError

    def _note(self, message: dict[str, Any]) -> None:
        said = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requested.append(said["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(said["exceptionDetails"].get("exception", {}).get("description", "?"))
        if message.get("method") == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.errors.append(said["entry"]["text"])

    def resize(self, width: int, height: int) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, wanted: bool) -> None:
        value = "dark" if wanted else "light"
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def open(self, address: str) -> None:
        """Load a page, wait until it is complete, and clear what was noted of the one before."""
        self.requested.clear()
        self.errors.clear()
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=address)
        script = "new Promise(r => document.readyState == 'complete' ? r(1) : addEventListener('load', () => r(1)))"
        self.run(script)

    def run(self, script: str) -> Any:
        """The value of an expression in the page. Raises RuntimeError for what it throws."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description"))
        return answer["result"].get("value")

    def type(self, text: str) -> None:
        """Keys as a person presses them."""
        for key in text:
            self.press(key, text=key)

    def press(self, key: str, **more: Any) -> None:
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **more)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        content = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(content))
