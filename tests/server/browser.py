"""Headless Chromium over its debugging pipe (https://chromedevtools.github.io/devtools-protocol)."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--no-first-run", "--remote-debugging-pipe")  # fmt: skip
KEYS = {"Enter": ("Enter", 13, "\r"), "ArrowRight": ("ArrowRight", 39, ""), "Tab": ("Tab", 9, "")}


class Browser:
    """One page of one browser."""

    def __init__(self, profile: Path):
        assert CHROMIUM is not None, "there is no Chromium here"
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        redirect = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out} 2>/dev/null'
        command = ["bash", "-c", redirect, CHROMIUM, *FLAGS, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out))
        os.close(theirs_in), os.close(theirs_out)
        self._number, self._rest, self._session = 0, b"", {}
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a command; note problems the page reports meanwhile."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._in, 1 << 20)
            assert part, "Chromium has gone"
            self._rest += part
        raw, self._rest = self._rest.split(b"\0", 1)
        return json.loads(raw)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:500])
        if event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])

    def open(
        self, url: str, *, width: int = 1280, height: int = 900, scheme: str = "light"
    ) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call("Page.navigate", url="about:blank")
        self.wait_for("document.URL === 'about:blank'")
        self.problems.clear()
        self.call("Page.navigate", url=url)
        self.wait_for(f"document.URL === '{url}/' && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        given = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        result = self.call("Runtime.evaluate", **given)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true; half a minute at most."""
        found = self.value(
            "new Promise((end) => { const start = Date.now(); const look = () => "
            f"({condition}) ? end(true) : Date.now() - start > 30000 ? end(false) : "
            "setTimeout(look, 50); look(); })"
        )
        assert found, f"{condition} did not come true: {self.problems}"

    def press(self, key: str) -> None:
        name, code, text = KEYS[key]
        given = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **given)
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in), os.close(self._out)
