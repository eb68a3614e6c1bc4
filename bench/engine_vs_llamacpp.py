#!/usr/bin/env python3
"""Our cpu engine beside llama.cpp, alternating in one run: same file, same threads, same cells.

    python3 -m venv venv && venv/bin/pip install llama-cpp-python     (built for this machine:
                                                   CMAKE_ARGS=-DGGML_NATIVE=ON)
    venv/bin/python bench/engine_vs_llamacpp.py [--program build/bench/bench_engine]
        [--model FILE] [--threads 2] [--rounds 5] [--only TEXT] [--json FILE] [--cpu-time]

Each round runs ours, then llama.cpp with flash attention on and off (each is its best somewhere);
a cell's peer is the better of the two medians. Rates are tokens per second, medians over rounds;
with --cpu-time (one thread only) per second of the thread's CPU time, for a busy machine.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time

import llama_cpp as L

CELLS = {  # name: (prompt, depth, sequences); the same names as bench_engine.c
    "prefill 64": (64, 0, 1), "prefill 512": (512, 0, 1), "prefill 2048": (2048, 0, 1),
    "decode at 0": (0, 0, 1), "decode at 512": (0, 512, 1), "decode at 2048": (0, 2048, 1),
    "decode 4 at 512": (0, 512, 4), "decode 16 at 512": (0, 512, 16),
    "decode 32 at 512": (0, 512, 32),
}
STEPS = 32
CHUNK = 512


class Peer:
    """One llama.cpp context per number of sequences, with a fixed flash-attention setting."""

    def __init__(self, model, options, flash):
        self.model, self.threads, self.flash = model, options.threads, flash
        self.now = time.thread_time if options.cpu_time else time.perf_counter
        self.vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))
        self.batch = L.llama_batch_init(CHUNK, 0, 1)
        self.contexts = {}

    def context(self, seqs):
        if seqs not in self.contexts:
            p = L.llama_context_default_params()
            p.n_ctx = 2304 if seqs == 1 else 640 * seqs
            p.n_batch = p.n_ubatch = CHUNK
            p.n_seq_max = seqs
            p.n_threads = p.n_threads_batch = self.threads
            p.flash_attn_type = 1 if self.flash else 0
            p.kv_unified = False
            self.contexts[seqs] = [L.llama_init_from_model(self.model, p), {}]
        return self.contexts[seqs]

    def decode(self, ctx, rows):
        """rows: (token, position, sequence, wants logits)"""
        for i, (token, position, seq, logits) in enumerate(rows):
            self.batch.token[i], self.batch.pos[i] = token, position
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, seq
            self.batch.logits[i] = logits
        self.batch.n_tokens = len(rows)
        if L.llama_decode(ctx, self.batch):
            raise RuntimeError("llama_decode failed")

    def feed(self, ctx, seq, count):
        tokens = [(i * 2654435761 >> 7) % self.vocab for i in range(count)]
        for at in range(0, count, CHUNK):
            end = min(at + CHUNK, count)
            self.decode(ctx, [(tokens[i], i, seq, i == count - 1) for i in range(at, end)])
        L.llama_synchronize(ctx)

    def run(self, prompt, depth, seqs):
        ctx, filled = self.context(seqs)
        memory = L.llama_get_memory(ctx)
        if prompt:
            L.llama_memory_clear(memory, False)
            filled.clear()
            start = self.now()
            self.feed(ctx, 0, prompt)
            return prompt / (self.now() - start)
        for seq in range(seqs):  # keep the context of earlier rounds, drop what came after it
            if filled.get(seq) != depth:
                L.llama_memory_seq_rm(memory, seq, -1, -1)
                if depth:
                    self.feed(ctx, seq, depth)
                filled[seq] = depth
            L.llama_memory_seq_rm(memory, seq, depth, -1)
        tokens = list(range(100, 100 + seqs))
        for step in range(2 + STEPS):
            if step == 2:
                start = self.now()
            self.decode(ctx, [(tokens[s], depth + step, s, True) for s in range(seqs)])
            for s in range(seqs):  # read the logits, as a sampler would; choosing costs us, not it
                tokens[s] = int(L.llama_get_logits_ith(ctx, s)[0] > 0) + 100 + s
        return STEPS * seqs / (self.now() - start)


def ours(options):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [options.program, "--model", options.model, "--threads", str(options.threads),
                   "--runs", "1", "--json", out.name]
        if options.cpu_time:
            command += ["--cpu-time"]
        if options.only:
            command += ["--only", options.only]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return {k: v[0] for k, v in json.load(open(out.name))["tokens_per_s"].items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/bench/bench_engine")
    parser.add_argument("--model", default=os.path.expanduser(
        "~/.cache/baton/SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only")
    parser.add_argument("--json")
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    if options.cpu_time and options.threads != 1:
        parser.error("--cpu-time counts one thread: add --threads 1")
    silent = L.llama_log_callback(lambda *_: None)  # kept: the library calls it to the end
    L.llama_log_set(silent, None)
    L.llama_backend_init()
    model = L.llama_model_load_from_file(options.model.encode(), L.llama_model_default_params())
    peers = {"fa on": Peer(model, options, True), "fa off": Peer(model, options, False)}
    rates = {name: {"ours": [], "fa on": [], "fa off": []} for name in CELLS
             if not options.only or options.only in name}
    for number in range(options.rounds):
        for name, rate in ours(options).items():
            rates[name]["ours"].append(rate)
        for flash, peer in peers.items():
            for name in rates:
                rates[name][flash].append(peer.run(*CELLS[name]))
        print(f"round {number + 1} of {options.rounds}", flush=True)
    print(L.llama_print_system_info().decode())
    print(f"{'tokens/s, medians':<20}{'ours':>9}{'range':>17}{'fa on':>9}{'fa off':>9}{'ratio':>7}")
    for name, by in rates.items():
        median = {who: statistics.median(values) for who, values in by.items()}
        spread = f"{min(by['ours']):.0f}-{max(by['ours']):.0f}"
        ratio = median["ours"] / max(median["fa on"], median["fa off"])
        print(f"{name:<20}{median['ours']:>9.1f}{spread:>17}{median['fa on']:>9.1f}"
              f"{median['fa off']:>9.1f}{ratio:>7.2f}")
    if options.json:
        json.dump(rates, open(options.json, "w"), indent=1)


if __name__ == "__main__":
    main()
