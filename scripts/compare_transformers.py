#!/usr/bin/env python3
"""Loads checkpoints that `berth quantize` wrote in transformers with compressed-tensors, an
independent implementation, and compares the logits of a text with Berth's.

    compare_transformers.py BERTH DIR... [--tokens FILE.bin] [--n 256]

Needs torch, transformers and compressed-tensors, in an environment of their own. Prints a row a
checkpoint; exit status 1 when one differs by more than 16-bit arithmetic would.

Int8 activations amplify: a difference in the last bit of a float moves one value in thousands to the
next integer, and each of those thousands in the next layer. Checkpoints that have them are compared
with float activations in both; with the integers, the loss a token must agree.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import compressed_tensors
import numpy
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 2.0**-8  # relative error of a bfloat16 number
NLL_LIMIT = 0.02  # nats a token


def berth_logits(berth, folder, tokens, n, more=()):
    with tempfile.NamedTemporaryFile() as f:
        args = [berth, "eval", "--model", folder, "--tokens", tokens, "--window", n, "--limit", 1]
        args += ["--logits", f.name, "--jobs", 1, "--quiet", "--json", *more]
        subprocess.run([str(a) for a in args], check=True, stdout=subprocess.DEVNULL)
        return numpy.fromfile(f.name, numpy.float32).reshape(n, -1).astype(numpy.float64)


def rounds_activations(folder):
    q = json.loads((folder / "config.json").read_text()).get("quantization_config", {})
    return any(g["input_activations"] for g in q.get("config_groups", {}).values())


def their_logits(folder, ids, float_activations):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for m in model.modules():
        if float_activations and getattr(m, "quantization_scheme", None) is not None:
            m.quantization_scheme.input_activations = None
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().numpy()


def nll(logits, ids):
    """Mean loss of predicting each token from those before it."""
    x = logits[:-1] - logits[:-1].max(1, keepdims=True)
    right = x[numpy.arange(len(x)), ids[1 : len(x) + 1]]
    return (numpy.log(numpy.exp(x).sum(1)) - right).mean()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("berth", type=pathlib.Path)
    p.add_argument("folders", type=pathlib.Path, nargs="+")
    p.add_argument("--tokens", default=ROOT / "tests/models/test_tokens_u16.bin")
    p.add_argument("--n", type=int, default=256)
    o = p.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    ids = numpy.fromfile(o.tokens, "<u2")[: o.n].astype(numpy.int64).tolist()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, compressed-tensors "
          f"{compressed_tensors.__version__}; {o.n} tokens\n")
    print("| checkpoint | activations | relative RMS difference | greatest | same likeliest token "
          "| difference in loss, nats |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    good = True

    def compare(folder, label, more, float_activations, judge_logits):
        ours = berth_logits(o.berth.resolve(), folder, o.tokens, o.n, more)
        theirs = their_logits(folder, ids, float_activations)
        d = ours - theirs
        rms = numpy.sqrt((d * d).sum() / (theirs * theirs).sum())
        same = (ours.argmax(1) == theirs.argmax(1)).mean()
        loss = nll(ours, ids) - nll(theirs, ids)
        print(f"| {folder.name} | {label} | {rms:.2e} | {numpy.abs(d).max():.2e} | "
              f"{100 * same:.1f}% | {loss:+.5f} |", flush=True)
        return rms <= LIMIT if judge_logits else abs(loss) <= NLL_LIMIT

    for folder in o.folders:
        ints = rounds_activations(folder)
        good &= compare(folder, "float", ["--activations", "fp32"] if ints else [], ints, True)
        if ints:
            good &= compare(folder, "int8", [], False, False)
    return 0 if good else 1


sys.exit(main())
