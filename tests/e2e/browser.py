"""A headless Chromium by the WebDriver protocol. Standard library only."""
import base64
import contextlib
import http.client
import json
import shutil
import subprocess
import tempfile
import time

import server as serving

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Shift": "\ue008", "Alt": "\ue00a", "Right": "\ue014", "Tab": "\ue004"}


def missing():
    """What is not installed, or None."""
    for program in ("chromedriver", "chromium"):
        if not shutil.which(program):
            return f"{program} is not installed"
    return None


class Browser:
    def __init__(self):
        self.port = serving.free_port()
        self.profile = tempfile.TemporaryDirectory()
        self.driver = subprocess.Popen(["chromedriver", f"--port={self.port}"], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
        self.session = None
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     "--disable-background-networking", f"--user-data-dir={self.profile.name}"]
        wanted = {"browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"},
                  "goog:chromeOptions": {"args": arguments, "binary": shutil.which("chromium")}}
        end = time.monotonic() + 60
        while self.session is None:
            with contextlib.suppress(OSError):
                self.session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
            if time.monotonic() > end:
                raise RuntimeError("the browser does not start")
            time.sleep(0.1)

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        try:
            connection.request(method, path, None if method == "GET" else json.dumps(body or {}),
                               {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise RuntimeError(f"{value['error']}: {value.get('message', '')[:500]}")
        return value

    def do(self, method, path, body=None):
        return self.call(method, f"/session/{self.session}{path}", body)

    def close(self):
        with contextlib.suppress(Exception):
            self.call("DELETE", f"/session/{self.session}")
        self.driver.terminate()
        self.driver.wait(20)
        self.profile.cleanup()

    def open(self, url):
        self.do("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self.do("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        return self.do("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.do("POST", f"/element/{self.find(selector)}/click")

    def type(self, selector, text):
        self.do("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, *names):
        """Keys held together, the last one released first."""
        keys = [KEYS.get(name, name) for name in names]
        actions = [{"type": "keyDown", "value": key} for key in keys] + [{"type": "keyUp", "value": key} for key in keys[::-1]]
        self.do("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def wait(self, script, seconds=30):
        """Until the expression is true; its value."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.run(f"return {script}")
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s: {script}")

    def view(self, width, height, dark=False, phone=False):
        cdp = "/goog/cdp/execute"
        self.do("POST", cdp, {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}})
        self.do("POST", cdp, {"cmd": "Emulation.setEmulatedMedia", "params": {
            "features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}})

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.do("GET", "/screenshot")))

    def complaints(self):
        """What the console holds beyond plain information."""
        return [entry["message"] for entry in self.do("POST", "/se/log", {"type": "browser"}) if entry["level"] in ("SEVERE", "WARNING")]
