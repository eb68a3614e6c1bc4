#!/usr/bin/env python3
"""Writes dequant.jsonl and hf-spm/ (pip install numpy gguf tokenizers).

dequant.jsonl: blocks of random bytes of each type with what the gguf package makes of them.
hf-spm/: a folder without weights whose tokenizer.json has a byte-fallback BPE made of the
vocabulary of tiny/tiny-mistral-nemo-f32.gguf, and cases.jsonl: what the tokenizers package makes
of texts, with a space in front of every stretch (legacy) as in the file.
"""
import json
import pathlib

import gguf
import numpy
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).parent
TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
# Where the f16 scales lie in a block; random bytes there could be NaN.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208]}


def dequant():
    rng = numpy.random.default_rng(1)
    with open(HERE / "dequant.jsonl", "w") as out:
        for name in TYPES:
            kind = gguf.GGMLQuantizationType[name]
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            if elements == 1:
                values = rng.standard_normal(64).astype(numpy.float32)
                values[:3] = [0, -0.0, 1e-7]
                data = gguf.quantize(values, kind).view(numpy.uint8).reshape(-1)
            else:
                data = rng.integers(0, 256, 3 * size, dtype=numpy.uint8)
                for block in range(3):
                    for at in SCALES[name]:
                        scale = numpy.float16(rng.standard_normal() * 10.0 ** (-2 * block))
                        data[block * size + at:block * size + at + 2] = numpy.frombuffer(
                            scale.tobytes(), numpy.uint8)
            values = gguf.dequantize(data.reshape(1, -1) if elements > 1 else data.view(
                {"F32": numpy.float32, "F16": numpy.float16}.get(name, numpy.uint8)).reshape(1, -1), kind)
            json.dump({"type": int(kind), "name": name, "hex": data.tobytes().hex(),
                       "values": [float(v) for v in values.reshape(-1)]}, out)
            out.write("\n")


def spm():
    reader = gguf.GGUFReader(HERE / "tiny/tiny-mistral-nemo-f32.gguf")
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    scores = reader.fields["tokenizer.ggml.scores"].contents()
    vocab = {text: i for i, text in enumerate(tokens)}
    merges = []
    for text, i in vocab.items():
        for cut in range(1, len(text)):
            if i >= 259 and text[:cut] in vocab and text[cut:] in vocab:
                merges.append((-scores[i], vocab[text[:cut]], text[:cut], text[cut:]))
    merges.sort(key=lambda m: m[:2])
    special = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False,
                "rstrip": i == 2, "normalized": False, "special": True} for i in range(3)]
    data = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "pre_tokenizer": None,
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                      {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                                    {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": None,
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>",
                  "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
                  "byte_fallback": True, "ignore_merges": False, "vocab": vocab,
                  "merges": [" ".join(m[2:]) for m in merges]},
    }
    folder = HERE / "hf-spm"
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=True))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "mistral", "hidden_size": 64, "intermediate_size": 96, "head_dim": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1,
        "vocab_size": 384, "max_position_embeddings": 512, "sliding_window": 256,
        "rms_norm_eps": 1e-5, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
        "hidden_act": "silu", "eos_token_id": [2]}, indent=1))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": {"content": "<s>"}, "eos_token": "</s>",
        "chat_template": [{"name": "tool_use", "template": "other"},
                          {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"}]},
        indent=1))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = []
    for line in open(HERE / "tiny/tokenizers.jsonl"):
        row = json.loads(line)
        if row["pre"] == "spm":
            texts = [case["text"] for case in row["cases"]]
    with open(folder / "cases.jsonl", "w") as out:
        for text in texts:
            json.dump({"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}, out)
            out.write("\n")
        for text in ["a</s>  b", "<s>x</s>", "</s>\n\n", "a <unk> b"]:
            json.dump({"text": text, "special": True,
                       "ids": tokenizer.encode(text, add_special_tokens=False).ids}, out)
            out.write("\n")


dequant()
spm()
