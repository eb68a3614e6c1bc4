"""What was found by trying to break a cluster: odd settings, too much at once."""
import contextlib
import signal
import socket
import subprocess

import pytest

import harness
import peer

KEY = bytes(range(32))
CONDUCTOR = 777
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


@contextlib.contextmanager
def lone_node(folder, role):
    """A node whose conductor is the test: (process, connection to it, its Hello)."""
    (folder / "key").write_text(KEY.hex())
    with socket.create_server(("127.0.0.1", 0)) as listener, open(folder / "log", "w", encoding="utf-8") as log:
        listener.settimeout(30 * harness.SLOW)
        process = subprocess.Popen(
            [harness.BUILD / f"{role}-node" / f"baton-{role}-node", "--model", harness.TINY["f32"], "--engine", "sim",
             "--cluster-key-file", folder / "key", "--conductor", "127.0.0.1:%d" % listener.getsockname()[1],
             "--admin-port", "0", "--state-dir", folder], stdout=log, stderr=log)
        try:
            conductor = peer.Peer(listener, KEY)
            hello = conductor.receive("HELLO")[1]
            conductor.send("WELCOME", peer.uint(1, 1) + peer.uint(3, 1) + peer.fixed(4, CONDUCTOR) +
                           peer.data(5, "test") + peer.uint(6, 100) + peer.uint(7, 60000))
            yield process, conductor, hello
            process.send_signal(signal.SIGTERM)
            assert process.wait(30 * harness.SLOW) == 0, (folder / "log").read_text()
        finally:
            process.kill()
            process.wait()


def test_hello_without_a_format(tmp_path):
    with lone_node(tmp_path, "decode") as (process, conductor, hello):
        stranger = peer.Peer("127.0.0.1:%d" % hello[17], KEY)
        stranger.send("HELLO", peer.uint(1, 1) + peer.uint(2, 1) + peer.data(4, "p") + peer.fixed(5, 1) + peer.uint(6, 1))
        with pytest.raises(ConnectionError):
            stranger.receive()
        conductor.receive("REPORT")
        assert process.poll() is None


def test_prefill_node_named_as_its_own_decode_node(tmp_path):
    with lone_node(tmp_path, "prefill") as (process, conductor, hello):
        conductor.send("PREFILL", peer.ref(CONDUCTOR, 1, 1) + peer.uint(2, 1) + peer.data(3, hello[7]) +
                       peer.data(4, peer.fixed(5, 1) + peer.uint(8, 10)) + peer.packed(5, [1, 2, 3]) +
                       peer.packed(7, [0]) + peer.data(8, bytes(16)) + peer.uint(10, 0) + peer.data(11, hello[4]) +
                       peer.fixed(12, hello[5]) + peer.data(13, hello[16]) + peer.uint(14, hello[17]))
        returned = conductor.receive("RETURNED")[1]
        assert returned[4] == b"this node does not decode"
        conductor.send("RELEASE", peer.ref(CONDUCTOR, 1, 1))
        conductor.receive("REPORT")
        assert process.poll() is None


@pytest.mark.parametrize("command, says", [
    (["decode-node/baton-decode-node", "--node", "a b"], "--node a b: give up to 63 letters"),
    (["decode-node/baton-decode-node", "--node", "n" * 64], "--node nnn"),
    (["decode-node/baton-decode-node", "--threads", "257"], "0 to 256"),
    (["conductor/baton-conductor", "--lease", "100ms"], "500"),
    (["cli/baton", "up", "--state-dir", "/proc/none"], "state folder /proc/none: No such file"),
])
def test_what_cannot_work_says_so(command, says):
    """Each of these once started, or failed without a word why."""
    done = subprocess.run([harness.BUILD / command[0], *command[1:], "--model", harness.TINY["f32"]],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30 * harness.SLOW)
    assert done.returncode in (1, 2) and says in done.stderr, (done.returncode, done.stderr)
