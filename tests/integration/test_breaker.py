"""What was found by trying to break a cluster: odd settings, too much at once."""
import harness

FAST = ["prefill-node.sim-prefill-token=100", "prefill-node.sim-prefill-square=0", "decode-node.sim-step=5",
        "decode-node.sim-step-seq=0"]


def cluster(sets=(), **options):
    return harness.cluster(engine="sim", sets=FAST + list(sets), **options)


def ask(running, length=100, tokens=8, **fields):
    prompt = [1 + i * 7 % 250 for i in range(length)]
    return running.post("/v1/completions", {"model": running.model(), "prompt": prompt, "max_tokens": tokens,
                                            "temperature": 0, "ignore_eos": True, **fields})


def test_more_choices_than_a_node_has_seats():
    """They run in turn instead of being refused for ever."""
    with cluster(sets=["decode-node.max-num-seqs=2"]) as running:
        answer = ask(running, n=5)
        assert answer.status == 200, answer.text
        one = ask(running).json()["choices"][0]["text"]
        assert [choice["text"] for choice in answer.json()["choices"]] == [one] * 5


def test_a_node_with_a_shorter_context():
    """What does not fit it costs that request alone, and no node its connection."""
    sets = ["prefill-0.max-model-len=128", "decode-0.max-model-len=128", "conductor.resume-wait=300"]
    with cluster(sets=sets) as running:
        with running.stream("/v1/completions", {"model": running.model(), "prompt": [5] * 20, "max_tokens": 60,
                                                "ignore_eos": True}) as stream:
            pieces = stream.texts()
            next(pieces)
            answer = ask(running, length=300)
            assert answer.status == 503 and "no node could serve" in answer.text, answer.text
            assert len(list(pieces)) > 1
        assert ask(running, length=100).status == 200
        assert "lost" not in running.log("prefill-0") + running.log("decode-0")
