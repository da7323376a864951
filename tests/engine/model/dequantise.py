#!/usr/bin/env python3
"""Reads quantised checkpoints with numpy, from the formats' descriptions alone, and prints what the
matrices are as float32: a check of engine/model that shares no code with it.

usage: dequantise.py DIR...   prints JSON {DIR's name: {module: [FNV-1a of the float32 bytes, sum]}}
"""
import json
import os
import sys

import numpy as np

TYPES = {"F32": np.float32, "F16": np.float16, "I8": np.int8, "I32": np.int32, "I64": np.int64,
         "BF16": np.uint16, "U8": np.uint8}


def tensors(path):
    raw = open(path, "rb").read()
    n = int.from_bytes(raw[:8], "little")
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        a = np.frombuffer(raw[8 + n + begin:8 + n + end], TYPES[t["dtype"]]).reshape(t["shape"])
        if t["dtype"] == "BF16":
            a = (a.astype(np.uint32) << 16).view(np.float32)
        out[name] = a
    return out


def nibbles(words, bits=4):
    """The last axis unpacked, low bits first."""
    words = words.view(np.uint32)
    parts = [(words >> np.uint32(bits * i)) & np.uint32(2 ** bits - 1) for i in range(32 // bits)]
    return np.stack(parts, axis=-1).reshape(*words.shape[:-1], -1).astype(np.int32)


def gptq(t, base, config):
    q = nibbles(t[base + ".qweight"].T).T  # [K, N]
    zeros = nibbles(t[base + ".qzeros"])
    if config.get("checkpoint_format", "gptq") == "gptq":
        zeros = zeros + 1
    g_idx = t[base + ".g_idx"]
    return ((q - zeros[g_idx]).astype(np.float32) * t[base + ".scales"].astype(np.float32)[g_idx]).T


def awq(t, base, config):
    back = [0, 4, 1, 5, 2, 6, 3, 7]

    def columns(words):
        v = nibbles(words)
        return v.reshape(v.shape[0], -1, 8)[:, :, back].reshape(v.shape[0], -1)
    q = columns(t[base + ".qweight"])
    g = np.arange(q.shape[0]) // config["group_size"]
    zeros = columns(t[base + ".qzeros"])[g]
    return ((q - zeros).astype(np.float32) * t[base + ".scales"].astype(np.float32)[g]).T


def compressed(t, base, config):
    scale = t[base + ".weight_scale"].astype(np.float32)
    if base + ".weight" in t:
        return t[base + ".weight"].astype(np.float32) * scale
    weights = next(iter(config["config_groups"].values()))["weights"]
    n, k = t[base + ".weight_shape"]
    q = nibbles(t[base + ".weight_packed"], weights["num_bits"])[:, :k]
    q = q - 2 ** (weights["num_bits"] - 1)
    if weights["strategy"] != "group":
        return q.astype(np.float32) * scale
    g = t.get(base + ".weight_g_idx", np.arange(k) // weights["group_size"])
    if base + ".weight_zero_point" in t:
        zeros = nibbles(t[base + ".weight_zero_point"].T).T[:n] - 8
        q = q - zeros[:, g]
    return q.astype(np.float32) * scale[:, g]


def fnv(data):
    h = 0xcbf29ce484222325
    for b in data:
        h = ((h ^ b) * 0x100000001b3) & 0xffffffffffffffff
    return h


def main():
    out = {}
    for path in sys.argv[1:]:
        config = json.load(open(os.path.join(path, "config.json")))["quantization_config"]
        t = tensors(os.path.join(path, "model.safetensors"))
        read, mark = {"gptq": (gptq, ".qweight"), "awq": (awq, ".qweight"),
                      "compressed-tensors": (compressed, ".weight_scale")}[config["quant_method"]]
        rows = {}
        for name in sorted(t):
            if name.endswith(mark):
                base = name[:-len(mark)]
                w = np.ascontiguousarray(read(t, base, config), dtype=np.float32) + np.float32(0)
                rows[base] = ["%016x" % fnv(w.tobytes()), float(w.astype(np.float64).sum())]
        out[os.path.basename(os.path.normpath(path))] = rows
    json.dump(out, sys.stdout, indent=0)
    print()


if __name__ == "__main__":
    main()
