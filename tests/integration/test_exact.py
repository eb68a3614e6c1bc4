"""Token-exactness (DESIGN's oracle): the same tokens and the same bits of their logprobs, coupled or
disaggregated, over shm or tcp, alone or in company, in chunks of any size, with and without reuse."""
import concurrent.futures
import itertools

import pytest

import harness

CHUNKS = (1, 7, 64, 512)
MODES = {
    "both": dict(prefill=0, decode=0, both=1),
    "shm": dict(prefill=1, decode=1, transport="shm"),
    "tcp": dict(prefill=1, decode=1, transport="tcp"),
}


def prompt_ids(length, salt):
    """Ids below 256 are bytes in every tiny vocabulary; a small generator makes them differ."""
    state, ids = salt * 7919 + 1, []
    for _ in range(length):
        state = (state * 1103515245 + 12345) % 2**31
        ids.append(32 + state // 65536 % 90)
    return ids


def bodies():
    """Sixteen requests: lengths around block borders, greedy and seeded, one choice and three."""
    lengths = (3, 63, 64, 65, 128, 130, 200, 301)
    for index, (length, seeded) in enumerate(itertools.product(lengths, (False, True))):
        yield {
            "prompt": prompt_ids(length, index % 5), "max_tokens": 20, "ignore_eos": True, "logprobs": 2,
            "n": 3 if index % 4 == 3 else 1,
            **({"temperature": 0.8, "top_p": 0.95, "seed": 1000 + index} if seeded else {"temperature": 0}),
        }


def ask(cluster, body):
    answer = cluster.post("/v1/completions", {"model": cluster.model(), **body}, timeout=300)
    assert answer.status == 200, answer.text
    got = answer.json()
    choices = [(c["index"], c["text"], c["finish_reason"], c["logprobs"]["tokens"], c["logprobs"]["token_logprobs"],
                c["logprobs"]["top_logprobs"]) for c in got["choices"]]
    return choices, got["usage"]["prompt_tokens_details"]["cached_tokens"]


def ask_all(cluster, requests, at_once):
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda body: ask(cluster, body), requests))


def start(model, mode, chunk, **options):
    sets = [f"{daemon}.prefill-chunk={chunk}" for daemon in ("prefill-node", "decode-node")]
    return harness.cluster(model=model, sets=sets + options.pop("sets", []), **MODES[mode], **options)


_reference = {}


def reference(name):
    """Coupled, whole prompts, one at a time, nothing cached."""
    if name not in _reference:
        sets = ["prefill-node.enable-prefix-caching=false", "decode-node.enable-prefix-caching=false"]
        with start(harness.TINY[name], "both", 512, sets=sets) as cluster:
            answers = ask_all(cluster, bodies(), 1)
        assert all(cached == 0 for _, cached in answers)
        texts = [text for choices, _ in answers for text in choices]
        assert len({str(text) for text in texts}) > 10, "the reference should not be all the same"
        _reference[name] = [choices for choices, _ in answers]
    return _reference[name]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", harness.TINY)
def test_matrix(name, mode):
    expected = reference(name)
    for chunk in CHUNKS:
        with start(harness.TINY[name], mode, chunk) as cluster:
            cold = ask_all(cluster, bodies(), 16)
            warm = ask_all(cluster, bodies(), 1)
            again = ask_all(cluster, bodies(), 1)  # prompts that ran side by side first are whole in the cache now
            transfers = cluster.stats()["transfers"]
        for index, want in enumerate(expected):
            assert cold[index][0] == want, f"chunk {chunk}, 16 at once, request {index}"
            assert warm[index][0] == want, f"chunk {chunk}, reusing the cache, request {index}"
            assert again[index][0] == want, f"chunk {chunk}, reusing all of it, request {index}"
        reused = [cached for _, cached in again]
        assert max(reused) >= 256 and all(cached % 64 == 0 for cached in reused), reused
        if mode != "both":
            assert transfers[mode] > 0 and sum(transfers[t] for t in ("shm", "tcp") if t != mode) == 0


@pytest.mark.timeout(900)
def test_demo_model_up_to_the_context_limit():
    """Six prompts on the demo model, coupled and disaggregated over both transports."""
    if not harness.DEMO.exists():
        pytest.skip(f"the demo model is not at {harness.DEMO}")
    lengths = (12, 300, 700, 1500, 3000, 8100)
    requests = [{"prompt": [500 + (i * i + 31 * n) % 40000 for i in range(n)], "max_tokens": 12, "temperature": 0,
                 "ignore_eos": True, "logprobs": 1} for n in lengths]
    answers = {}
    for mode, chunk in (("both", 512), ("shm", 100), ("tcp", 257)):
        with start(harness.DEMO, mode, chunk, threads=0) as cluster:
            answers[mode] = [ask(cluster, body)[0] for body in requests]
    assert answers["shm"] == answers["both"]
    assert answers["tcp"] == answers["both"]
