"""What integration tests stand on: a cluster under `baton up`, small HTTP helpers, waiting.

    with harness.cluster(prefill=2, decode=1, transport="tcp", sets=["conductor.policy=round-robin"]) as c:
        answer = c.post("/v1/completions", {"prompt": "Hi", "max_tokens": 4})
        os.kill(c.pid("prefill-0"), signal.SIGKILL)

Leaving the block stops the cluster and checks that every daemon found nothing leaked.
Environment: BATON_BUILD, the build folder; BATON_TEST_MODEL, the demo model; BATON_TEST_SLOW, a factor for
waits (sanitizer builds).
"""
import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BATON_BUILD", ROOT / "build"))
BATON = BUILD / "cli" / "baton"
TINY = {
    name: ROOT / "tests" / "golden" / "tiny" / f"tiny-llama-{name}.gguf"
    for name in ("f32", "f16-tied", "q4_1", "mha-q4_0")
}
DEMO = pathlib.Path(
    os.environ.get("BATON_TEST_MODEL")
    or pathlib.Path.home() / ".cache" / "baton" / "SmolLM2-135M-Instruct.Q4_1.gguf"
)
SLOW = float(os.environ.get("BATON_TEST_SLOW", "1"))


def wait_until(condition, seconds=10.0, what="a condition", interval=0.02):
    """The first truthy value of condition(); an exception from it counts as not yet."""
    deadline = time.monotonic() + seconds * SLOW
    last = None
    while True:
        try:
            value = condition()
            if value:
                return value
        except (OSError, http.client.HTTPException, KeyError, ValueError, AssertionError) as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds * SLOW:.0f} s for {what}" + (f"; last: {last!r}" if last else ""))
        time.sleep(interval)


class Answer:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def text(self):
        return self.body.decode("utf-8", "strict")

    def json(self):
        return json.loads(self.body)


def request(base_url, method, path, body=None, headers=None, timeout=60.0):
    url = urllib.parse.urlsplit(base_url)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=timeout * SLOW)
    try:
        data = None
        headers = dict(headers or {})
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        connection.request(method, path, data, headers)
        reply = connection.getresponse()
        return Answer(reply.status, dict(reply.getheaders()), reply.read())
    finally:
        connection.close()


class Stream:
    """A streamed answer, event by event; close() hangs up at any moment."""

    def __init__(self, base_url, path, body, headers=None, timeout=60.0):
        url = urllib.parse.urlsplit(base_url)
        self.connection = http.client.HTTPConnection(url.hostname, url.port, timeout=timeout * SLOW)
        self.connection.request(
            "POST", path, json.dumps({**body, "stream": True}).encode(),
            {"Content-Type": "application/json", **(headers or {})},
        )
        self.reply = self.connection.getresponse()
        self.status = self.reply.status

    def __iter__(self):
        """Parsed events; ends at [DONE], and raises when the stream ends without it."""
        for line in self.reply:
            line = line.decode().rstrip("\r\n")
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                return
            yield json.loads(line[6:])
        raise AssertionError("the stream ended without [DONE]")

    def texts(self):
        """Pieces of choice 0's text."""
        for event in self:
            if "error" in event:
                raise AssertionError(f"error event: {event}")
            for choice in event["choices"]:
                if choice["index"] == 0:
                    yield choice.get("text") or choice.get("delta", {}).get("content") or ""

    def close(self):
        self.reply.close()
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def metric(text, name, **labels):
    """Sum of a metric's samples whose labels include these; KeyError when there is none."""
    total, found = 0.0, False
    for line in text.splitlines():
        match = re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", line)
        if not match or match.group(1) != name:
            continue
        given = dict(re.findall(r'(\w+)="((?:\\.|[^"\\])*)"', match.group(2) or ""))
        if all(given.get(key) == str(value) for key, value in labels.items()):
            total += float(match.group(3))
            found = True
    if not found:
        raise KeyError(name)
    return total


class Cluster:
    def __init__(self, process, state_dir):
        self.process = process
        self.state_dir = pathlib.Path(state_dir)
        self.base_url = None
        self.errors = []
        self.reader = threading.Thread(target=self._read_errors, daemon=True)
        self.reader.start()

    def _read_errors(self):
        for line in self.process.stderr:
            self.errors.append(line)

    def said(self):
        return "".join(self.errors)

    def daemons(self):
        """name -> what cluster.json says: pid, starts, ready, addresses."""
        with open(self.state_dir / "cluster.json", encoding="utf-8") as file:
            return {daemon["name"]: daemon for daemon in json.load(file)}

    def pid(self, name):
        return self.daemons()[name]["pid"]

    def node_url(self, name):
        """Admin and metrics listener of a daemon."""
        return "http://" + self.daemons()[name]["admin"]

    @property
    def admin_url(self):
        return self.node_url("conductor")

    def log(self, name):
        try:
            return (self.state_dir / f"{name}.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def get(self, path, **options):
        return request(self.base_url, "GET", path, **options)

    def post(self, path, body, **options):
        return request(self.base_url, "POST", path, body, **options)

    def stream(self, path, body, **options):
        return Stream(self.base_url, path, body, **options)

    def complete(self, prompt, **fields):
        """The text of one plain completion; anything but 200 fails the test."""
        answer = self.post("/v1/completions", {"model": self.model(), "prompt": prompt, "temperature": 0, **fields})
        assert answer.status == 200, answer.text
        return answer.json()["choices"][0]["text"]

    def model(self):
        if not hasattr(self, "_model"):
            self._model = self.get("/v1/models").json()["data"][0]["id"]
        return self._model

    def stats(self):
        return request(self.admin_url, "GET", "/stats").json()

    def metrics(self, name="conductor"):
        return request(self.node_url(name), "GET", "/metrics").text

    def wait_back(self, name, starts, seconds=30.0):
        """Until a daemon has been started that many times and is ready."""
        def back():
            daemon = self.daemons()[name]
            return daemon["starts"] >= starts and daemon["ready"]
        wait_until(back, seconds, f"{name} to be back")

    def report(self, lines=25):
        """For a failure: what up said and the ends of the logs."""
        parts = ["-- baton up --\n" + self.said()]
        for path in sorted(self.state_dir.glob("*.log")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"-- {path.name} --\n" + "\n".join(tail))
        return "\n".join(parts)

    def stop(self, number=signal.SIGTERM, timeout=60.0):
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("baton up did not stop\n" + self.report()) from None
        finally:
            self.reader.join(5)
        return self.process.returncode


def _end_with_us():
    """In the child: SIGTERM when the test process goes, however it goes."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def start(model=None, prefill=1, decode=1, both=0, transport="auto", engine="cpu", sets=(), extra=(),
          threads=1, timeout=120.0):
    """Starts a cluster and waits for its ready line. Who calls stops it."""
    state_dir = tempfile.mkdtemp(prefix="baton-test-", dir="/tmp")
    command = [
        str(BATON), "up", "--model", str(model or TINY["f32"]), "--engine", engine, "--port", "0",
        "--prefill", str(prefill), "--decode", str(decode), "--both", str(both), "--transport", transport,
        "--threads", str(threads), "--state-dir", state_dir,
        "--start-timeout", str(int(60 * SLOW)), "--stop-timeout", str(int(20 * SLOW)),
    ]
    for one in sets:
        command += ["--set", one]
    process = subprocess.Popen(
        command + list(extra), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL, preexec_fn=_end_with_us,
    )
    cluster = Cluster(process, state_dir)
    timer = threading.Timer(timeout * SLOW, process.kill)
    timer.start()
    line = process.stdout.readline()
    timer.cancel()
    if not line.startswith("ready http://"):
        process.kill()
        process.wait()
        cluster.reader.join(5)
        raise AssertionError("the cluster did not get ready\n" + cluster.report())
    cluster.base_url = line.split()[1]
    return cluster


@contextlib.contextmanager
def cluster(**options):
    """A running cluster; afterwards nothing may have leaked (exit status 0)."""
    expected = options.pop("exit_status", 0)
    running = start(**options)
    try:
        yield running
    except BaseException:
        with contextlib.suppress(AssertionError):
            running.stop()
        print(running.report())
        raise
    status = running.stop()
    assert status == expected, f"baton up exited with {status}\n" + running.report()
    shutil.rmtree(running.state_dir, ignore_errors=True)
