"""Chromium without a screen, driven over the DevTools protocol: what a person does with a page, and sees of it."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from websockets.sync.client import connect

from tests.waiting import wait_until

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
SCRIPT: Final = Path(__file__).with_name("browser.js")
LIMIT_S: Final = 40.0
#: No service of its maker is asked for anything, and nothing is drawn by a card that is not there.
OPTIONS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A page that was left is gone, and takes no keys that are for the next one.
    "--disable-features=BackForwardCache",
    "--disable-extensions",
    "--hide-scrollbars",
    "--disable-default-apps",
    "--renderer-process-limit=1",
    "--remote-debugging-port=0",
)
#: Nothing offers to keep or to fill in a password: it would take the keys that are meant for the page.
SETTINGS: Final = {
    "credentials_enable_service": False,
    "profile": {"password_manager_enabled": False},
    "autofill": {"enabled": False, "profile_enabled": False},
}
#: Keys by their names: what is pressed, its number, and the text that it types.
KEYS: Final = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    " ": (32, " "),
}


def program() -> str | None:
    """Give where Chromium is, None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser with one page."""

    def __init__(self, folder: Path, *, width: int = 1_280, height: int = 800) -> None:
        found = program()
        assert found, "there is no Chromium here"
        self._port_file = folder / "DevToolsActivePort"
        settings = folder / "Default" / "Preferences"
        settings.parent.mkdir()
        settings.write_text(json.dumps(SETTINGS))
        command = [
            found,
            *OPTIONS,
            f"--user-data-dir={folder}",
            f"--window-size={width},{height}",
            "about:blank",
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._numbers = itertools.count(1)
        self._lines = ExitStack()
        #: What pages asked for: addresses.
        self.requested: list[str] = []
        #: What the browser complained about: faults of scripts, breaches of the policy.
        self.complaints: list[str] = []
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise

    def _open(self) -> None:
        wait_until(
            lambda: self._port_file.exists() and self._port_file.read_text().count("\n"), "Chromium", LIMIT_S
        )
        port, path = self._port_file.read_text().split("\n")[:2]
        line = connect(f"ws://127.0.0.1:{port}{path}", max_size=None, compression=None, proxy=None)
        self._line = self._lines.enter_context(line)
        self._session = ""
        pages = [one for one in self.do("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        asked = {"targetId": pages[0]["targetId"], "flatten": True}
        self._session = self.do("Target.attachToTarget", **asked)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.do(f"{domain}.enable")
        # Keys go to the page, whichever window of the machine has the focus.
        self.do("Emulation.setFocusEmulationEnabled", enabled=True)
        self.do("Page.addScriptToEvaluateOnNewDocument", source=SCRIPT.read_text())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._process.terminate()
        try:
            self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    # -- the protocol ----------------------------------------------------------------------------------------

    def do(self, method: str, **parameters: Any) -> Any:
        """Do something and give what it answers; what happens meanwhile is noted."""
        number = next(self._numbers)
        told: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            told["sessionId"] = self._session
        self._line.send(json.dumps(told))
        while True:
            came = json.loads(self._line.recv(LIMIT_S))
            if came.get("id") == number:
                assert "error" not in came, (method, came["error"])
                return came["result"]
            self._note(came.get("method", ""), came.get("params", {}))

    def _note(self, method: str, told: dict[str, Any]) -> None:
        match method:
            case "Network.requestWillBeSent":
                self.requested.append(told["request"]["url"])
            case "Runtime.exceptionThrown":
                details = told["exceptionDetails"]
                self.complaints.append(details.get("exception", {}).get("description") or details["text"])
            case "Log.entryAdded":
                self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled" if told["type"] == "error":
                self.complaints.append(
                    str([one.get("value", one.get("description")) for one in told["args"]])
                )

    # -- what a person sees and does ---------------------------------------------------------------------------

    def open(self, url: str) -> None:
        self.do("Page.navigate", url=url)
        self.do("Page.bringToFront")

    def value(self, script: str) -> Any:
        """Give what an expression of the page is."""
        found = self.do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def sees(self, text: str) -> None:
        """Wait until a text is on the page."""
        last = ""

        def is_there() -> bool:
            nonlocal last
            last = str(self.value("document.body?.innerText ?? ''"))
            return text in last

        try:
            wait_until(is_there, repr(text), LIMIT_S)
        except AssertionError:
            raise AssertionError(f"{text!r} is not on the page:\n{last}\n{self.complaints}") from None

    def until(self, script: str) -> Any:
        """Wait until an expression is true, and give it."""
        return wait_until(lambda: self.value(script), script, LIMIT_S)

    def click(self, text: str, within: str = "body") -> None:
        """Click what has this text or label, when it is there and can be clicked."""
        self.until(f"globalThis.person?.click({json.dumps(text)}, {json.dumps(within)})")

    def type(self, text: str) -> None:
        """Type where the focus is."""
        self.do("Input.insertText", text=text)

    def fill(self, label: str, text: str, within: str = "body") -> None:
        """Put a text into the field with a label."""
        self.until(f"globalThis.person?.enter({json.dumps(label)}, {json.dumps(within)})")
        self.type(text)

    def choose(self, label: str, text: str, within: str = "body") -> None:
        """Choose what is called so in the list with a label."""
        asked = ", ".join(map(json.dumps, (label, text, within)))
        self.until(f"globalThis.person?.choose({asked})")

    def press(self, key: str, times: int = 1, *, shift: bool = False) -> None:
        number, text = KEYS[key]
        told = {"key": key, "code": key, "windowsVirtualKeyCode": number, "modifiers": 8 if shift else 0}
        for _ in range(times):
            self.do("Input.dispatchKeyEvent", type="keyDown", text=text, **told)
            self.do("Input.dispatchKeyEvent", type="keyUp", **told)

    def focused(self) -> str:
        """Give the name of what has the focus."""
        return str(self.value("person.focused()"))

    def tab_to(self, text: str, most: int = 80) -> None:
        """Press Tab until something has the focus."""
        met = []
        for _ in range(most):
            self.press("Tab")
            met.append(self.focused())
            if met[-1] == text:
                return
        raise AssertionError(f"Tab does not lead to {text!r}, but to {met}")

    # -- pictures ----------------------------------------------------------------------------------------------

    def look(self, *, width: int = 1_280, height: int = 800, dark: bool = False) -> None:
        """Have another size of the window, and light or dark colours."""
        self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.do("Emulation.setEmulatedMedia", features=features)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what is seen, or all of the page, as PNG."""
        found = self.do("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def settle(self, seconds: float) -> None:
        """Let the page work for a while; for pictures, and nothing else."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.value("new Promise((done) => setTimeout(done, 100))")
