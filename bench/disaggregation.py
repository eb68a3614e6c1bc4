#!/usr/bin/env python3
"""What keeping prefill and decode apart costs and gives on one machine: TTFT and TBT of one request
at a time, start to ready, and the share of the transfer that the prefill hides, for `--role both`, shm and
tcp. The clusters run at the same time and are asked in turn, so that a drift of the machine meets all alike.

    bench/disaggregation.py [--model FILE] [--rounds N] [--prompt TOKENS] [--json FILE]
"""
import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "integration"))
import harness  # noqa: E402

MODES = {
    "both": dict(prefill=0, decode=0, both=1),
    "shm": dict(prefill=1, decode=1, transport="shm"),
    "tcp": dict(prefill=1, decode=1, transport="tcp"),
}


def one(cluster, prompt, tokens):
    """TTFT and mean TBT in ms of one streamed request."""
    stamps = []
    body = {"model": cluster.model(), "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    start = time.perf_counter()
    with cluster.stream("/v1/completions", body) as stream:
        for _ in stream.texts():
            stamps.append(time.perf_counter())
    return (stamps[0] - start) * 1e3, (stamps[-1] - stamps[0]) / (len(stamps) - 1) * 1e3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=str(harness.DEMO))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--prompt", type=int, nargs="*", default=[64, 512, 2048])
    parser.add_argument("--json")
    args = parser.parse_args()
    results, hidden = {}, {}
    with contextlib.ExitStack() as stack:
        clusters = {}
        for name, options in MODES.items():
            start = time.perf_counter()
            clusters[name] = stack.enter_context(harness.cluster(model=args.model, threads=2, **options))
            results[name, "ready s"] = [time.perf_counter() - start]
        salt = 0
        for length in args.prompt:
            for round_index in range(args.rounds + 1):
                salt += 1
                prompt = [1000 + (i * 17 + salt * 7919) % 40000 for i in range(length)]
                for name, cluster in clusters.items():
                    ttft, tbt = one(cluster, prompt, 33)
                    if round_index:  # the first is a warm-up
                        results.setdefault((name, f"TTFT {length}"), []).append(ttft)
                        results.setdefault((name, f"TBT {length}"), []).append(tbt)
        for name, cluster in clusters.items():
            hidden[name] = cluster.stats().get("transfers", {})
    rows = sorted({key for _, key in results}, key=lambda key: (key.split()[0], len(key), key))
    print(f"{'':14}" + "".join(f"{name + ' (min-max)':>26}" for name in MODES) + f"{'shm/both':>10}{'tcp/both':>10}")
    for row in rows:
        medians = {name: statistics.median(results[name, row]) for name in MODES}
        cells = "".join(
            f"{medians[name]:>11.2f} ({min(results[name, row]):.1f}-{max(results[name, row]):.1f})".rjust(26) for name in MODES)
        print(f"{row:14}{cells}{medians['shm'] / medians['both']:>10.3f}{medians['tcp'] / medians['both']:>10.3f}")
    print("transfers:", json.dumps({name: hidden[name] for name in ("shm", "tcp")}))
    if args.json:
        out = {f"{name} {row}": values for (name, row), values in results.items()}
        pathlib.Path(args.json).write_text(json.dumps({"results": out, "transfers": hidden}, indent=1))


if __name__ == "__main__":
    main()
