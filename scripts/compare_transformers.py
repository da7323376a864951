#!/usr/bin/env python3
"""Loads checkpoints that `berth quantize` wrote in transformers with compressed-tensors, an
independent implementation, and compares the logits of a text with Berth's.

    compare_transformers.py BERTH DIR... [--tokens FILE.bin] [--n 256]

Needs torch, transformers and compressed-tensors, in an environment of their own. Prints a row a
checkpoint; exit status 1 when one differs by more than 16-bit arithmetic would.
"""

import argparse
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


def berth_logits(berth, folder, tokens, n):
    with tempfile.NamedTemporaryFile() as f:
        args = [berth, "eval", "--model", folder, "--tokens", tokens, "--window", n, "--limit", 1]
        args += ["--logits", f.name, "--jobs", 1, "--quiet", "--json"]
        subprocess.run([str(a) for a in args], check=True, stdout=subprocess.DEVNULL)
        return numpy.fromfile(f.name, numpy.float32).reshape(n, -1).astype(numpy.float64)


def their_logits(folder, ids):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().numpy()


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
    print("| checkpoint | relative RMS difference | greatest difference | same likeliest token |")
    print("| --- | ---: | ---: | ---: |")
    good = True
    for folder in o.folders:
        ours = berth_logits(o.berth.resolve(), folder, o.tokens, o.n)
        theirs = their_logits(folder, ids)
        d = ours - theirs
        rms = numpy.sqrt((d * d).sum() / (theirs * theirs).sum())
        same = (ours.argmax(1) == theirs.argmax(1)).mean()
        good = good and rms <= LIMIT
        print(f"| {folder.name} | {rms:.2e} | {numpy.abs(d).max():.2e} | {100 * same:.1f}% |",
              flush=True)
    return 0 if good else 1


sys.exit(main())
