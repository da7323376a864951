#!/usr/bin/env python3
"""Packs a dense checkpoint as GPTQ v1 and v2 (symmetric, with zero points, with act-order) and AWQ
with zero points, from the formats' descriptions alone; writes the dequantised weights beside each as
a dense checkpoint; and checks that `berth eval` gives both the same logits.

usage: pack_variants.py BERTH DENSE_DIR TOKENS.bin     (needs numpy)

Exit status 1: some logits differ by more than 1e-3.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from dequantise import tensors

GROUP = 64
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
NAMES = {np.dtype("float32"): "F32", np.dtype("float16"): "F16", np.dtype("int32"): "I32"}


def save(path, named):
    header, at, parts = {}, 0, []
    for name, a in named.items():
        raw = np.ascontiguousarray(a).tobytes()
        header[name] = {"dtype": NAMES[a.dtype], "shape": list(a.shape),
                        "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        parts.append(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def pack(q, axis, order=range(8)):
    """Eight nibbles along an axis into an int32."""
    q = np.moveaxis(q, axis, -1).astype(np.uint32)
    q = q.reshape(*q.shape[:-1], -1, 8)
    words = np.zeros(q.shape[:-1], np.uint32)
    for i, j in enumerate(order):
        words |= q[..., j] << np.uint32(4 * i)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis)).view(np.int32)


def quantise(w, g_idx, sym):
    """w [K, N] to integers 0..15, scales and zero points [G, N]."""
    n_groups = g_idx.max() + 1
    scales = np.zeros((n_groups, w.shape[1]), np.float16)
    zeros = np.full((n_groups, w.shape[1]), 8)
    q = np.zeros(w.shape, np.int64)
    for g in range(n_groups):
        part = w[g_idx == g]
        low, high = np.minimum(part.min(0), 0), np.maximum(part.max(0), 0)
        if sym:
            scales[g] = np.maximum(np.abs(part).max(0), 1e-6) / 7
        else:
            scales[g] = np.maximum(high - low, 1e-6) / 15
            zeros[g] = np.clip(np.rint(-low / scales[g].astype(np.float32)), 1, 15)
        q[g_idx == g] = np.clip(np.rint(part / scales[g].astype(np.float32)) + zeros[g], 0, 15)
    return q, scales, zeros


def variant(dense, kind, sym, act_order, rng):
    """Packed and dequantised tensors."""
    packed, plain = {}, {}
    for name, w in dense.items():
        if not name.endswith("_proj.weight"):
            packed[name] = plain[name] = w.astype(np.float32)
            continue
        base = name[: -len(".weight")]
        k = w.shape[1]
        g_idx = np.arange(k) // GROUP
        if act_order:
            g_idx = rng.permutation(g_idx)
        q, scales, zeros = quantise(w.T.astype(np.float32), g_idx, sym)
        wide = scales.astype(np.float32)
        plain[name] = ((q - zeros[g_idx]).astype(np.float32) * wide[g_idx]).T
        if kind == "awq":
            packed[base + ".qweight"] = pack(q, 1, AWQ_ORDER)
            packed[base + ".qzeros"] = pack(zeros, 1, AWQ_ORDER)
        else:
            packed[base + ".qweight"] = pack(q, 0)
            packed[base + ".qzeros"] = pack(zeros - (1 if kind == "gptq" else 0), 1)
            packed[base + ".g_idx"] = g_idx.astype(np.int32)
        packed[base + ".scales"] = scales
    return packed, plain


def write(folder, source, named, quantization):
    config = json.loads((source / "config.json").read_text())
    config.pop("quantization_config", None)
    if quantization is not None:
        config["quantization_config"] = quantization
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save(folder / "model.safetensors", named)


def logits(berth, folder, tokens):
    with tempfile.NamedTemporaryFile() as f:
        subprocess.run([berth, "eval", "--model", folder, "--tokens", tokens, "--window", "128",
                        "--limit", "1", "--logits", f.name, "--quiet", "--json", "--jobs", "1"],
                       check=True, stdout=subprocess.DEVNULL)
        return np.fromfile(f.name, np.float32)


def main():
    berth, source, tokens = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    dense = {}
    for path in sorted(source.glob("*.safetensors")):
        dense.update(tensors(path))
    rng = np.random.default_rng(1)
    good = True
    with tempfile.TemporaryDirectory() as tmp:
        for kind, sym, act_order in [("gptq", True, False), ("gptq", True, True),
                                     ("gptq", False, True), ("gptq_v2", True, True),
                                     ("gptq_v2", False, False), ("gptq_v2", False, True),
                                     ("awq", False, False)]:
            packed, plain = variant(dense, kind, sym, act_order, rng)
            if kind == "awq":
                q = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True,
                     "version": "gemm"}
            else:
                q = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": sym,
                     "desc_act": act_order, "checkpoint_format": kind}
            label = f"{kind}{'' if sym else ' with zero points'}{', act-order' * act_order}"
            at = pathlib.Path(tmp) / label.replace(" ", "_")
            write(at, source, packed, q)
            write(at.with_name(at.name + "_plain"), source, plain, None)
            a, b = logits(berth, at, tokens), logits(berth, at.with_name(at.name + "_plain"), tokens)
            worst = np.abs(a - b).max()
            good &= bool(worst <= 1e-3)
            print(f"{label}: greatest difference {worst:.1e} of logits up to {np.abs(b).max():.1f}")
    return 0 if good else 1


sys.exit(main())
