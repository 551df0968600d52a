"""Drives a headless Chromium over its DevTools pipe, with the standard library alone."""
import base64
import json
import os
import select
import shutil
import subprocess
import time

TIMEOUT_S = 60


def runs(program):
    """Ubuntu's chromium-browser is a script that asks for a snap."""
    done = subprocess.run([program, "--version"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=60)
    return done.returncode == 0


def find():
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        program = shutil.which(name)
        if program and runs(program):
            return program
    return None


class Browser:
    """One page. Events that it sent are in self.events."""

    def __init__(self, program, profile):
        to_read, self.to_write = os.pipe()
        self.from_read, from_write = os.pipe()
        # The browser reads commands from descriptor 3 and writes answers to 4.
        high = [os.dup(to_read), os.dup(from_write)]
        while min(high) < 5:
            high = [os.dup(high[0]), os.dup(high[1])]

        def place():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
             "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
             "--user-data-dir=" + str(profile), "about:blank"],
            preexec_fn=place, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in [to_read, from_write] + high:
            os.close(fd)
        self.n = 0
        self.rest = b""
        self.events = []
        targets = self.send("Target.getTargets", session=False)["targetInfos"]
        page = next(t for t in targets if t["type"] == "page")["targetId"]
        self.session = self.send("Target.attachToTarget", {"targetId": page, "flatten": True},
                                 session=False)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.send(domain + ".enable")

    def read(self):
        end = time.monotonic() + TIMEOUT_S
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.from_read], [], [], max(0, end - time.monotonic()))
            piece = os.read(self.from_read, 1 << 20) if ready else b""
            if not piece:
                raise RuntimeError("the browser does not answer")
            self.rest += piece
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def send(self, method, params=None, session=True):
        self.n += 1
        command = {"id": self.n, "method": method, "params": params or {}}
        if session:
            command["sessionId"] = self.session
        os.write(self.to_write, json.dumps(command).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.n:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, url, width=1280, height=900, dark=False):
        self.send("Emulation.setDeviceMetricsOverride",
                  {"width": width, "height": height, "deviceScaleFactor": 1,
                   "mobile": width < 600})
        self.send("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        self.events = []
        self.send("Page.navigate", {"url": url})
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self.read())

    def run(self, expression):
        """The value of a JavaScript expression. DevTools runs it although the page's policy
        forbids scripts."""
        result = self.send("Runtime.evaluate",
                           {"expression": expression, "returnByValue": True})
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def move_to(self, x, y):
        self.send("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})

    def picture(self, path, whole=True):
        data = self.send("Page.captureScreenshot", {"captureBeyondViewport": whole, "clip": {
            "x": 0, "y": 0, "scale": 1, "width": self.run("document.documentElement.clientWidth"),
            "height": self.run("document.documentElement.scrollHeight") if whole else 900}})
        with open(path, "wb") as out:
            out.write(base64.b64decode(data["data"]))

    def close(self):
        try:
            self.send("Browser.close", session=False)
        except (RuntimeError, OSError):
            pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to_write)
        os.close(self.from_read)
