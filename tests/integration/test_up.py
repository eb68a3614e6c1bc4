"""`baton up` as a supervisor, over stand-ins for the daemons (fake_daemon.py)."""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

import harness

pytestmark = pytest.mark.short


@pytest.fixture
def fakes(tmp_path):
    folder = tmp_path / "daemons"
    folder.mkdir()
    script = pathlib.Path(__file__).with_name("fake_daemon.py")
    for name in ("baton-conductor", "baton-prefill-node", "baton-decode-node"):
        path = folder / name
        path.write_text(f"#!{sys.executable}\n" + script.read_text())
        path.chmod(0o755)
    return folder


def up(fakes, *sets, **options):
    return harness.cluster(sets=sets, extra=["--daemon-dir", str(fakes), *options.pop("extra", [])], **options)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_starts_passes_flags_and_stops(fakes):
    sets = ["conductor.policy=round-robin", "node.lease=7s", "decode-1.threads=9", "prefill-node.x=a=b.c"]
    with up(fakes, *sets, prefill=2, decode=2, transport="tcp", engine="sim") as c:
        assert c.get("/readyz").status == 200
        assert sorted(c.daemons()) == ["conductor", "decode-0", "decode-1", "prefill-0", "prefill-1"]
        conductor, prefill, decode = c.log("conductor"), c.log("prefill-1"), c.log("decode-1")
        assert "--policy=round-robin" in conductor and "--lease" not in conductor
        assert "--role=prefill --node=prefill-1 --conductor=127.0.0.1:2" in prefill
        assert "--engine=sim --transport=tcp" in prefill
        assert "--lease=7s" in prefill and "--x=a=b.c" in prefill and "--threads=9" not in prefill
        assert "--lease=7s" in decode and "--threads=9" in decode and "--x=" not in decode
        assert "--threads=9" not in c.log("decode-0")
        assert c.daemons()["decode-0"]["transfer"] == "127.0.0.1:4"
        pids = [c.pid(name) for name in c.daemons()]
    assert not any(alive(pid) for pid in pids)


def test_both_alone(fakes):
    with up(fakes, both=2, prefill=0, decode=0) as c:
        assert sorted(c.daemons()) == ["both-0", "both-1", "conductor"]
        assert "--role=both" in c.log("both-0")


def test_a_killed_daemon_is_started_again(fakes):
    with up(fakes) as c:
        first = c.pid("prefill-0")
        port = c.base_url
        os.kill(first, signal.SIGKILL)
        c.wait_back("prefill-0", 2)
        assert c.pid("prefill-0") != first
        # The conductor comes back on the port that clients and nodes know.
        os.kill(c.pid("conductor"), signal.SIGKILL)
        c.wait_back("conductor", 2)
        harness.wait_until(lambda: harness.request(port, "GET", "/readyz").status == 200)
    assert "prefill-0 was killed by signal 9 (Killed); it is started again" in c.said()
    assert "prefill-0 is back" in c.said()


def test_a_crash_is_a_failure_even_when_all_is_well_later(fakes):
    with up(fakes, exit_status=1) as c:
        os.kill(c.pid("decode-0"), signal.SIGABRT)
        c.wait_back("decode-0", 2)
    assert "decode-0 was killed by signal 6" in c.said()


def test_a_leak_is_named(fakes):
    with up(fakes, "decode-0.fake=leak", exit_status=1) as c:
        pass
    assert "decode-0 exited with status 1: something leaked" in c.said()
    assert "leaked: 3 blocks of request 7" in c.said()


def test_conductor_stops_before_the_nodes(fakes):
    with up(fakes) as c:
        started = time.monotonic()
        assert c.stop() == 0
        assert time.monotonic() - started < 10
        times = [os.stat(c.state_dir / f"{name}.log").st_mtime_ns for name in ("conductor", "prefill-0", "decode-0")]
        assert times[0] < times[1] and times[0] < times[2]


def test_stubborn_is_killed(fakes):
    with up(fakes, "prefill-0.fake=stubborn", exit_status=1, extra=["--stop-timeout", "1s"]) as c:
        pass
    assert "prefill-0 did not stop in time and is killed" in c.said()


def test_a_frozen_daemon_still_stops(fakes):
    with up(fakes) as c:
        os.kill(c.pid("decode-0"), signal.SIGSTOP)


def test_gives_up_on_what_never_starts(fakes):
    with pytest.raises(AssertionError) as caught:
        harness.start(sets=["prefill-0.fake=fail"], extra=["--daemon-dir", str(fakes)])
    assert "prefill-0 does not start; giving up" in str(caught.value)
    assert "this daemon cannot start" in str(caught.value)


def test_gives_up_on_what_never_gets_ready(fakes):
    with pytest.raises(AssertionError) as caught:
        harness.start(sets=["conductor.fake=mute"], extra=["--daemon-dir", str(fakes), "--start-timeout", "1s"])
    assert "conductor did not get ready in time" in str(caught.value)


def test_children_die_with_a_killed_supervisor(fakes):
    c = harness.start(extra=["--daemon-dir", str(fakes)])
    pids = [c.pid(name) for name in c.daemons()]
    c.process.kill()
    c.process.wait()
    harness.wait_until(lambda: not any(alive(pid) for pid in pids), what="the daemons to die")
    shutil.rmtree(c.state_dir)


def test_own_temporary_folder_goes_away(fakes):
    process = subprocess.Popen(
        [str(harness.BATON), "up", str(harness.TINY["f32"]), "--port", "0", "--daemon-dir", str(fakes)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("ready http://127.0.0.1:")
    child = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
    words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
    folder = next(w for w in words if w.startswith("--cluster-key-file=")).partition("=")[2].rpartition("/")[0]
    assert folder.startswith("/tmp/baton-") and os.path.isdir(folder)
    assert os.stat(folder).st_mode & 0o777 == 0o700
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0, process.stderr.read()
    assert not os.path.exists(folder)


@pytest.mark.parametrize("words, expected", [
    ([], "--model FILE is needed"),
    (["--model", "/nonexistent"], "cannot read /nonexistent"),
    (["--model", "/dev/null", "--set", "x"], "must read DAEMON.SETTING=VALUE"),
    (["--model", "/dev/null", "--set", "decode-1.x=1"], "this cluster has no daemon 'decode-1'"),
    (["--model", "/dev/null", "--prefill", "60", "--decode", "60"], "at most 64 nodes"),
    (["--model", "/dev/null", "--engine", "gpu"], "give one of: cpu, sim"),
    (["--model", "/dev/null", "--daemon-dir", "/nonexistent"], "/nonexistent/baton-conductor: No such file"),
])
def test_refusals(words, expected):
    done = subprocess.run([str(harness.BATON), "up", *words], capture_output=True, text=True, timeout=30)
    assert done.returncode in (1, 2)
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
