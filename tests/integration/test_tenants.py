"""Tenants and API keys: what one tenant caches tells another nothing, keys come and go while the cluster runs,
rates hold, and Redis may be slow or gone."""
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pytest

import harness

LONG = "The keeper climbed the narrow stairs and lit the lamp, as on every evening before it. " * 4
REDIS = shutil.which("redis-server")
needs_redis = pytest.mark.skipif(not REDIS, reason="redis-server is not installed")
NOTICED = 2.0  # seconds after which a change must be in effect


def keys(*words, status=0):
    done = subprocess.run([str(harness.BATON), "keys", *words], capture_output=True, text=True, timeout=60 * harness.SLOW)
    assert done.returncode == status, done.stderr
    return done.stdout


def add(place, name, *words):
    """The secret, and the id that it contains."""
    secret = keys("add", name, *place, *words).strip()
    assert secret.startswith("sk-baton-")
    return secret, secret.split("-")[2]


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


def ask(c, secret, prompt=LONG, **fields):
    return c.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields},
                  headers=bearer(secret))


def cached(c, secret, **fields):
    answer = ask(c, secret, **fields)
    assert answer.status == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def warm(c, secret, **fields):
    """Cached tokens of a prompt that this tenant has asked before: the prefill node lets go of a prompt's blocks a
    moment after the answer, so the first try may come too early."""
    return harness.wait_until(lambda: cached(c, secret, **fields), what="a hit")


def status(base_url, secret):
    return harness.request(base_url, "GET", "/v1/models", headers=bearer(secret)).status


def changes_to(base_url, secret, expected):
    """Until a key is answered so; the time that it took must be within what is promised."""
    started = time.monotonic()
    harness.wait_until(lambda: status(base_url, secret) == expected, 10, f"status {expected}")
    assert time.monotonic() - started < NOTICED * harness.SLOW


@pytest.fixture
def keys_file(tmp_path):
    return str(tmp_path / "keys")


def with_file(path, *sets):
    return harness.cluster(sets=[f"conductor.api-keys-file={path}", *sets])


@pytest.mark.short
def test_tenants_do_not_share(keys_file):
    place = ("--file", keys_file)
    a, b, other = (add(place, n, "--tenant", t)[0] for n, t in (("a", "acme"), ("b", "acme"), ("c", "other")))
    assert os.stat(keys_file).st_mode & 0o777 == 0o600
    text = open(keys_file, encoding="utf-8").read()
    assert not any(secret in text or secret.split("-")[3] in text for secret in (a, b, other))
    with with_file(keys_file, "conductor.metrics-tenants=1") as c:
        assert cached(c, a) == 0
        hit = warm(c, a)
        assert warm(c, b) == hit  # another key of the same tenant
        # The same prompt of another tenant, and then once more.
        assert cached(c, other) == 0
        assert warm(c, other) == hit
        # cache_salt narrows within the tenant, and reaches into no other.
        assert cached(c, a, cache_salt="s") == 0
        assert warm(c, a, cache_salt="s") == hit
        assert cached(c, other, cache_salt="s") == 0
        # Not even the other tenant's salt, were it known, opens anything.
        salts = set(re.findall(r'"tenant_salt": "([0-9a-f]{64})"', text))
        assert len(salts) == 2
        for salt in salts:
            assert cached(c, other, cache_salt=salt) == 0
        # And texts are the same for all of them.
        assert len({ask(c, secret).json()["choices"][0]["text"] for secret in (a, b, other)}) == 1
        metrics = c.metrics()
        assert set(re.findall(r'baton_tenant_requests_total{tenant="([^"]*)"}', metrics)) == {"acme", "(others)"}
        assert harness.metric(metrics, "baton_tenant_requests_total", tenant="acme") >= 5
        # Who is refused, and how.
        for headers, word in (({}, "needed"), ({"Authorization": "Basic x"}, "needed"), (bearer("sk-none"), "not valid"),
                              (bearer(a[:-1] + ("0" if a[-1] != "0" else "1")), "not valid")):
            answer = c.post("/v1/completions", {"prompt": "Hi"}, headers=headers)
            assert answer.status == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
            error = answer.json()["error"]
            assert word in error["message"] and error["type"] == "AuthenticationError" and error["code"] == 401
        # On loopback the admin listener is open.
        assert c.stats()["nodes"]


def test_keys_change_while_it_runs(keys_file):
    place = ("--file", keys_file)
    with with_file(keys_file) as c:
        assert harness.request(c.base_url, "GET", "/v1/models", headers=bearer("sk-baton-x")).status == 503  # not one read
        first, first_id = add(place, "first")
        changes_to(c.base_url, first, 200)
        second, _ = add(place, "second", "--expires", "3s")
        changes_to(c.base_url, second, 200)
        # A request under way when its key is revoked goes on to its end.
        body = {"prompt": "Hi", "max_tokens": 400, "ignore_eos": True, "temperature": 0}
        with c.stream("/v1/completions", body, headers=bearer(first)) as stream:
            events = iter(stream)
            next(events)
            keys("revoke", first_id, *place)
            changes_to(c.base_url, first, 401)
            rest = list(events)
            assert rest[-1]["choices"][0]["finish_reason"] == "length" or len(rest) > 0
        assert "revoked" in ask(c, first).json()["error"]["message"]
        harness.wait_until(lambda: status(c.base_url, second) == 401, 10, "the key to expire")
        assert "expired" in ask(c, second).json()["error"]["message"]
        # A damaged or missing file changes nothing for keys that are known.
        third, _ = add(place, "third")
        changes_to(c.base_url, third, 200)
        whole = open(keys_file, encoding="utf-8").read()
        with open(keys_file, "a", encoding="utf-8") as file:
            file.write('{"id": "cut')
        harness.wait_until(lambda: "baton_key_store_up 0" in c.metrics(), what="the damage to be seen")
        assert status(c.base_url, third) == 200 and status(c.base_url, first) == 401
        keys("add", "x", *place, status=1)
        os.unlink(keys_file)
        time.sleep(NOTICED)
        assert status(c.base_url, third) == 200
        with open(keys_file, "w", encoding="utf-8") as file:
            file.write(whole)
        harness.wait_until(lambda: "baton_key_store_up 1" in c.metrics(), what="the file to be read again")
        assert status(c.base_url, third) == 200


def test_rates(keys_file):
    place = ("--file", keys_file)
    slow, _ = add(place, "slow", "--requests-per-minute", "20")
    thrifty, _ = add(place, "thrifty", "--tokens-per-minute", "1200")
    free, _ = add(place, "free")
    with with_file(keys_file) as c:
        def until_refused(secret, **fields):
            for count in range(100):
                answer = ask(c, secret, **fields)
                if answer.status != 200:
                    assert answer.status == 429 and answer.json()["error"]["type"] == "RateLimitError", answer.text
                    return count, int(answer.headers["Retry-After"])
            raise AssertionError("never refused")

        count, wait = until_refused(slow, prompt="Hi")
        assert 20 <= count <= 20 + 60 * harness.SLOW and 1 <= wait <= 3
        assert ask(c, free, prompt="Hi").status == 200  # one key's rate is its own
        time.sleep(wait)
        assert ask(c, slow, prompt="Hi").status == 200
        # Prompts and answers count; the text that overdrew the bucket was served whole.
        count, wait = until_refused(thrifty)
        tokens = ask(c, free).json()["usage"]["total_tokens"]
        assert count >= 1200 // tokens
        assert 1 <= wait <= tokens // 20 + 1
        time.sleep(wait)
        assert ask(c, thrifty, prompt="Hi").status == 200
        assert ask(c, free, prompt="Hi").status == 200


# ---- Redis ----


class Redis:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="baton-redis-", dir="/tmp")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [REDIS, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder],
            stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        harness.wait_until(lambda: socket.create_connection(("127.0.0.1", self.port), 1).close() is None, what="redis")

    @property
    def place(self):
        return ("--redis", f"127.0.0.1:{self.port}/t")

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def redis():
    server = Redis()
    yield server
    server.process.send_signal(signal.SIGCONT)
    server.kill()
    shutil.rmtree(server.folder, ignore_errors=True)


@contextlib.contextmanager
def lone_conductor(*words):
    """A conductor without nodes: it knows keys and names its model."""
    process = subprocess.Popen(
        [str(harness.BUILD / "conductor" / "baton-conductor"), "--model", str(harness.TINY["f32"]), "--port", "0",
         "--admin-port", "0", "--control-port", "0", *words],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        line = process.stdout.readline()
        yield "http://" + next(w.split("=")[1] for w in line.split() if w.startswith("client="))
    finally:
        process.terminate()
        assert process.wait(30 * harness.SLOW) == 0


def with_redis(redis):
    return harness.cluster(sets=[f"conductor.redis={redis.place[1]}"])


@needs_redis
@pytest.mark.short
def test_conductors_share_keys(redis):
    a, a_id = add(redis.place, "a", "--tenant", "acme")
    other, _ = add(redis.place, "o", "--tenant", "other")
    with with_redis(redis) as c, lone_conductor(*redis.place) as second:
        assert status(c.base_url, a) == status(second, a) == 200
        assert cached(c, a) == 0
        assert warm(c, a) > 0
        assert cached(c, other) == 0
        b, _ = add(redis.place, "b", "--tenant", "acme")
        changes_to(c.base_url, b, 200)
        changes_to(second, b, 200)
        assert warm(c, b) > 0
        keys("revoke", a_id, *redis.place)
        changes_to(c.base_url, a, 401)
        changes_to(second, a, 401)
        assert "revoked" in keys("ls", *redis.place)


class Load:
    """Clients that ask on without a pause; every answer must be 200, and none may be slow."""

    def __init__(self, c, secret, clients=3):
        self.c, self.secret, self.over = c, secret, threading.Event()
        self.times, self.failures = [], []
        self.threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def _run(self):
        while not self.over.is_set():
            started = time.monotonic()
            try:
                answer = ask(self.c, self.secret, prompt="Hi", max_tokens=8)
                if answer.status != 200:
                    self.failures.append(answer.text)
            except OSError as error:
                self.failures.append(repr(error))
            self.times.append(time.monotonic() - started)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()


@needs_redis
@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_redis_goes_under_load(redis, fault):
    secret, key_id = add(redis.place, "a")
    with with_redis(redis) as c:
        body = {"prompt": "Hi", "max_tokens": 300, "ignore_eos": True, "temperature": 0}
        plain = ask(c, secret, **body).json()["choices"][0]["text"]
        with Load(c, secret) as load, c.stream("/v1/completions", body, headers=bearer(secret)) as stream:
            pieces = stream.texts()
            first = next(pieces)
            time.sleep(1)
            redis.process.send_signal(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
            harness.wait_until(lambda: "baton_key_store_up 0" in c.metrics(), what="the conductor to notice")
            time.sleep(4)
            assert first + "".join(pieces) == plain
            assert status(c.base_url, secret) == 200
            # A key that nobody knows is still refused at once.
            started = time.monotonic()
            assert status(c.base_url, "sk-baton-0123456789abcdef-" + "0" * 64) == 401
            assert time.monotonic() - started < 1 * harness.SLOW
        assert not load.failures and len(load.times) > 20
        assert max(load.times) < 1.5 * harness.SLOW, f"the slowest took {max(load.times):.2f} s"
        if fault == "stopped":
            redis.process.send_signal(signal.SIGCONT)
            harness.wait_until(lambda: "baton_key_store_up 1" in c.metrics(), what="Redis to be back")
            keys("revoke", key_id, *redis.place)
            changes_to(c.base_url, secret, 401)
        else:
            # It comes back without its data: what is known stays, new keys come in.
            redis.process.wait()
            redis.start()
            time.sleep(NOTICED)
            assert status(c.base_url, secret) == 200
            fresh, _ = add(redis.place, "b")
            harness.wait_until(lambda: status(c.base_url, fresh) == 200, what="the new key")


@needs_redis
def test_starts_without_redis(redis):
    secret, _ = add(redis.place, "a")
    redis.process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    with lone_conductor(*redis.place) as url:
        assert time.monotonic() - started < 10 * harness.SLOW
        answer = harness.request(url, "GET", "/v1/models", headers=bearer(secret))
        assert answer.status == 503 and answer.headers["Retry-After"] == "1"
        redis.process.send_signal(signal.SIGCONT)
        harness.wait_until(lambda: status(url, secret) == 200, what="the keys")
