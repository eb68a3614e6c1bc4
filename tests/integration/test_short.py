"""The spine in a minute: also what the sanitizer builds run. Text must not depend on how it came about."""
import os
import signal
import subprocess
import threading

import pytest

import harness

pytestmark = pytest.mark.short

PROMPTS = ["Once upon a time", "The quick brown fox jumps over the lazy dog. " * 4, "1 2 3"]


def texts(c, **fields):
    return [c.complete(prompt, max_tokens=24, ignore_eos=True, **fields) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def expected():
    """From one coupled node, one request after the other, without reuse."""
    with harness.cluster(prefill=0, decode=0, both=1, sets=["node.enable-prefix-caching=false"]) as c:
        return texts(c), texts(c, temperature=0.9, seed=7)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_disaggregated(expected, transport):
    with harness.cluster(transport=transport) as c:
        assert texts(c) == expected[0]
        assert texts(c, temperature=0.9, seed=7) == expected[1]
        # Again, now from cached prefixes.
        assert texts(c) == expected[0]
        results = [None] * 6

        def ask(i):
            body = {"model": c.model(), "prompt": PROMPTS[i % 3], "max_tokens": 24, "ignore_eos": True, "temperature": 0}
            with c.stream("/v1/completions", body) as stream:
                results[i] = "".join(stream.texts())

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == expected[0] * 2
        moved = harness.wait_until(lambda: c.stats()["transfers"][transport], what="KV bytes in the stats")
        assert moved > 0


def test_stats_trace_and_drain():
    with harness.cluster(decode=2) as c:
        answer = c.post("/v1/completions", {"model": c.model(), "prompt": "Hi", "max_tokens": 4, "temperature": 0})

        def tool(*words):
            done = subprocess.run([str(harness.BATON), *words, "--admin", c.admin_url], capture_output=True, text=True,
                                  timeout=60 * harness.SLOW)
            assert done.returncode == 0, done.stderr
            return done.stdout

        table = tool("stats")
        assert all(name in table for name in ("prefill-0", "decode-0", "decode-1", "TTFT", "TBT", "KV moved:"))
        trace = tool("trace", answer.json()["id"])
        assert answer.json()["id"] in trace and "prefill-0" in trace and "TTFT" in trace
        tool("drain", "decode-0")
        harness.wait_until(lambda: {n["name"]: n for n in c.stats()["nodes"]}.get("decode-0", {"state": "drained"})["state"]
                           in ("drained", "gone"), what="decode-0 to drain")
        assert c.complete("Hi", max_tokens=4, ignore_eos=True)


def test_a_client_goes_and_a_node_dies(expected):
    with harness.cluster(prefill=2, decode=2) as c:
        body = {"model": c.model(), "prompt": PROMPTS[0], "max_tokens": 200, "ignore_eos": True, "temperature": 0}
        with c.stream("/v1/completions", body) as stream:
            pieces = stream.texts()
            first = next(pieces) + next(pieces)
            os.kill(c.pid("decode-0"), signal.SIGKILL)
            os.kill(c.pid("prefill-0"), signal.SIGKILL)
            text = first + "".join(pieces)
        # The shorter text may end inside a character.
        assert text.startswith(expected[0][0].rstrip("\ufffd"))
        assert text == c.complete(PROMPTS[0], max_tokens=200, ignore_eos=True)
        c.wait_back("decode-0", 2)
        c.wait_back("prefill-0", 2)
        stream = c.stream("/v1/completions", body)
        next(iter(stream))
        stream.close()
        harness.wait_until(lambda: c.stats()["conductor"]["requests"]["open"] == 0, what="the cancelled request to end")
