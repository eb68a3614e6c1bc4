"""Faults over real processes. The sim engine derives each token from the KV bytes that it reads back, so a
lost, misplaced or corrupt block is a wrong token; its time is set, so that a fault meets the moment it is for."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import signal
import time
import urllib.parse

import pytest

import harness
from harness import wait_until

SLOW_PREFILL = ["prefill-node.sim-prefill-token=3000", "prefill-node.max-num-batched-tokens=32"]
FAST = ["prefill-node.sim-prefill-token=100", "prefill-node.sim-prefill-square=0", "decode-node.sim-step=10",
        "decode-node.sim-step-seq=0", "conductor.lease=1500", "conductor.heartbeat=100"]


def cluster(prefill=2, decode=2, sets=(), **options):
    return harness.cluster(engine="sim", prefill=prefill, decode=decode, sets=FAST + list(sets), **options)


def body(salt=0, length=150, tokens=60, **fields):
    return {"prompt": [1 + (i * 7 + salt * 13) % 250 for i in range(length)], "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, **fields}


def complete(running, request):
    answer = running.post("/v1/completions", {"model": running.model(), **request})
    assert answer.status == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


def complete_all(running, requests):
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda one: complete(running, one), requests))


@pytest.fixture(scope="module")
def expected():
    """What the fault-free cluster says to body(0) .. body(15)."""
    with cluster(prefill=1, decode=1) as running:
        return [complete(running, body(salt)) for salt in range(16)]


class Asked:
    """A request whose answer nobody has waited for yet; close() hangs up."""

    def __init__(self, running, request):
        url = urllib.parse.urlsplit(running.base_url)
        self.connection = http.client.HTTPConnection(url.hostname, url.port)
        self.connection.request("POST", "/v1/completions", json.dumps({"model": running.model(), **request}),
                                {"Content-Type": "application/json"})

    def close(self):
        self.connection.close()


def at_rest(running):
    """Nothing of any request is left on any node."""
    def quiet():
        stats = running.stats()
        return all(node["running"] == 0 and node["waiting"] == 0 and node["blocks"]["used"] == 0
                   and node["blocks"]["reserved"] == 0 and node["blocks"]["quarantined"] == 0
                   for node in stats["nodes"])
    wait_until(quiet, 15, "every node to be at rest")


def nodes(running, role):
    return [node for node in running.stats()["nodes"] if node["role"] == role]


def resumed(running):
    return running.stats()["conductor"]["requests"]["resumed"]


# ---- the client goes ----

def test_client_gone_while_queued():
    with cluster(prefill=1, decode=1, sets=SLOW_PREFILL) as running:
        first = Asked(running, body(0, length=400))
        second = Asked(running, body(1, length=400, stream=True))
        wait_until(lambda: sum(node["waiting"] for node in running.stats()["nodes"]) >= 1, what="a queue")
        second.close()
        first.close()
        at_rest(running)


def test_client_gone_in_prefill():
    with cluster(prefill=1, decode=1, sets=SLOW_PREFILL) as running:
        stream = Asked(running, body(0, length=400))
        wait_until(lambda: any(node["blocks"]["used"] for node in nodes(running, "prefill")), what="prefill")
        stream.close()
        wait_until(lambda: all(node["blocks"]["used"] == 0 for node in nodes(running, "prefill")), 2.5, "the cancel")
        at_rest(running)


def test_client_gone_in_transfer():
    sets = ["decode-node.fault-delay=30000"]
    with cluster(prefill=1, decode=1, sets=sets) as running:
        stream = Asked(running, body(0, length=450))
        wait_until(lambda: any(node["blocks"]["reserved"] for node in nodes(running, "decode")), what="landing")
        stream.close()
        at_rest(running)


def test_client_gone_in_decode():
    with cluster(prefill=1, decode=1) as running:
        with running.stream("/v1/completions", {"model": running.model(), **body(0, tokens=300)}) as stream:
            pieces = stream.texts()
            for _ in range(5):
                next(pieces)
        at_rest(running)
        decoded = harness.metric(running.metrics("decode-0"), "baton_decode_tokens_total")
        assert decoded < 300, "it went on to the end for nobody"


# ---- a node dies ----

@pytest.mark.parametrize("victim", ["prefill-0", "decode-0"])
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.3])
def test_kill_and_resume(expected, victim, delay):
    with cluster() as running:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(complete, running, body(salt)) for salt in range(8)]
            time.sleep(delay)
            os.kill(running.pid(victim), signal.SIGKILL)
            for salt, answer in enumerate(answers):
                assert answer.result() == expected[salt], salt
        running.wait_back(victim, 2)
        wait_until(lambda: len(running.stats()["nodes"]) >= 4 and
                   all(node["state"] == "ready" for node in running.stats()["nodes"]), what="the node to join again")
        assert complete_all(running, [body(salt) for salt in range(8)]) == expected[:8]
        at_rest(running)


def test_no_other_node_is_one_clear_error():
    """The only decode node dies and stays away: one error, as an event in a stream, and no hang."""
    with cluster(prefill=1, decode=1, sets=["conductor.resume-wait=500"]) as running:
        stream = running.stream("/v1/completions", {"model": running.model(), **body(0, tokens=300)})
        events = iter(stream)
        for _ in range(3):
            next(events)
        os.kill(running.pid("decode-0"), signal.SIGSTOP)
        error = None
        with contextlib.suppress(AssertionError):
            for event in events:
                error = event.get("error") or error
        os.kill(running.pid("decode-0"), signal.SIGCONT)
        assert error and error["code"] == 503 and error["message"], error
        running.wait_back("decode-0", 1)
        wait_until(lambda: complete(running, body(0)), what="the cluster to serve again")
        at_rest(running)


@pytest.mark.parametrize("victim", ["prefill-0", "decode-0"])
def test_frozen_node_is_fenced(expected, victim):
    with cluster() as running:
        before = {node["name"]: node["incarnation"] for node in running.stats()["nodes"]}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(complete, running, body(salt)) for salt in range(8)]
            time.sleep(0.2)
            pid = running.pid(victim)
            os.kill(pid, signal.SIGSTOP)
            frozen = time.monotonic()
            try:
                for salt, answer in enumerate(answers):
                    assert answer.result() == expected[salt], salt
                time.sleep(max(0, 3 - (time.monotonic() - frozen)))  # well past the lease
            finally:
                os.kill(pid, signal.SIGCONT)

        def joined_anew():
            now = {node["name"]: node for node in running.stats()["nodes"]}
            return now[victim]["incarnation"] > before[victim] and now[victim]["state"] == "ready"
        wait_until(joined_anew, 10, "the woken node to join under a new incarnation")
        assert complete_all(running, [body(salt) for salt in range(8)]) == expected[:8]
        at_rest(running)


# ---- the wire, memory, refusals ----

@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_flipped_bits_cost_a_resend(expected, transport):
    with cluster(prefill=1, decode=1, transport=transport, sets=["prefill-node.fault-flip-every=5"]) as running:
        assert complete_all(running, [body(salt) for salt in range(16)]) == expected
        text = running.metrics("decode-0")
        assert harness.metric(text, "baton_slices_corrupt_total") > 0
        assert harness.metric(running.metrics("prefill-0"), "baton_slices_resent_total") > 0
        at_rest(running)


def test_broken_connections_in_transfer(expected):
    with cluster(prefill=1, decode=1, transport="tcp", sets=["prefill-node.fault-drop-every=11"]) as running:
        assert complete_all(running, [body(salt) for salt in range(16)]) == expected
        at_rest(running)


def test_preemption_keeps_the_text(expected):
    """Room for a few sequences only: blocks run out, the youngest is preempted and resumes."""
    sets = ["decode-node.kv-cache-memory-bytes=320K", "decode-node.max-model-len=512", "conductor.max-model-len=512",
            "prefill-node.max-model-len=512"]
    with cluster(prefill=1, decode=1, sets=sets) as running:
        assert complete_all(running, [body(salt) for salt in range(16)]) == expected
        assert harness.metric(running.metrics("decode-0"), "vllm:num_preemptions_total") >= 0
        at_rest(running)


def test_refusal_by_d_costs_p_no_token(expected):
    """A decode node with one place refuses; the request is served by the other, and p computed it once."""
    with cluster(prefill=1, decode=2, sets=["decode-0.max-num-seqs=1"]) as running:
        assert complete_all(running, [body(salt) for salt in range(8)]) == expected[:8]
        computed = harness.metric(running.metrics("prefill-0"), "baton_prefill_tokens_total")
        assert computed <= 8 * 150, computed
        at_rest(running)


def test_drain(expected):
    """Draining a decode node hands its requests on; the text goes on as if nothing had happened."""
    with cluster() as running:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(complete, running, body(salt)) for salt in range(8)]
            time.sleep(0.2)
            answer = harness.request(running.admin_url, "POST", "/drain?node=decode-0")
            assert answer.status in (200, 202), answer.text
            for salt, one in enumerate(answers):
                assert one.result() == expected[salt], salt
        wait_until(lambda: [node["state"] for node in running.stats()["nodes"] if node["name"] == "decode-0"]
                   == ["drained"], 20, "the node to be drained")
        assert complete_all(running, [body(salt) for salt in range(4)]) == expected[:4]
        at_rest(running)


# ---- many of them ----

def test_thirty_random_kills(expected):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    # A killed daemon is started again after a pause that grows: both prefill nodes may well be away for 10 s.
    with cluster(sets=["conductor.resume-wait=60000"]) as running:
        stop = time.monotonic() + 600 * harness.SLOW
        kills = 0
        names = ["prefill-0", "prefill-1", "decode-0", "decode-1"]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            waiting = {}
            while kills < 30 and time.monotonic() < stop:
                while len(waiting) < 8:
                    salt = dice.randrange(16)
                    waiting[pool.submit(complete, running, body(salt))] = salt
                time.sleep(dice.uniform(0, 0.4))
                victim = dice.choice(names)
                daemon = running.daemons()[victim]
                if daemon["ready"]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(daemon["pid"], signal.SIGKILL)
                        kills += 1
                for one in [one for one in waiting if one.done()]:
                    assert one.result() == expected[waiting.pop(one)], f"seed {seed}"
            for one, salt in waiting.items():
                assert one.result() == expected[salt], f"seed {seed}"
        assert kills == 30
        wait_until(lambda: sum(node["state"] == "ready" for node in running.stats()["nodes"]) == 4, 30, "all back")
        at_rest(running)
