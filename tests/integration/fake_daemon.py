"""A stand-in for any of the three daemons, for tests of `baton up` alone.

It takes the real flags, says `ready ...`, answers /readyz, and misbehaves as `--fake WORD` says:
fail (exits at once), mute (never ready), stubborn (ignores SIGTERM), leak (exits 1 at the end),
stopped-code=N (exits N). Each start writes its arguments to stderr, which is its log.
"""
import http.server
import os
import signal
import sys
import threading
import time


def main():
    name = os.path.basename(sys.argv[0])
    flags = {}
    for word in sys.argv[1:]:
        key, _, value = word[2:].partition("=")
        flags[key] = value
    print("arguments", *sys.argv[1:], file=sys.stderr, flush=True)
    fake = flags.get("fake", "")
    if fake == "fail":
        print("this daemon cannot start", file=sys.stderr)
        return 3
    if fake == "mute":
        time.sleep(600)
    done = threading.Event()

    def on_term(*_):
        print("asked to stop", file=sys.stderr, flush=True)
        if fake != "stubborn":
            done.set()

    signal.signal(signal.SIGTERM, on_term)
    key = open(flags["cluster-key-file"], encoding="ascii").read().strip()
    assert len(key) == 64, key

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/readyz" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    port = int(flags.get("port", "0"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = "127.0.0.1:%d" % server.server_address[1]
    print("a line before")
    if name == "baton-conductor":
        print(f"ready client={place} admin=127.0.0.1:1 control=127.0.0.1:2", flush=True)
    else:
        assert flags["conductor"] == "127.0.0.1:2", flags
        print("ready peer=127.0.0.1:3 transfer=127.0.0.1:4 admin=127.0.0.1:5", flush=True)
    while not done.wait(0.1):
        pass
    if fake == "leak":
        print("leaked: 3 blocks of request 7", file=sys.stderr)
        return 1
    return int(fake.partition("=")[2]) if fake.startswith("stopped-code") else 0


if __name__ == "__main__":
    sys.exit(main())
