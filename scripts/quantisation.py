#!/usr/bin/env python3
"""What each quantisation of a checkpoint costs: the tables of docs/QUANTISATION.md.

    scripts/quantisation.py BERTH OUT [--model NAME] [--limit N] [--rows NAME,..] [--models DIR]
                            [--stress | --pairs A:B,..]

Runs `berth quantize` and `berth eval` row by row on one thread and keeps every answer in OUT: rows
that are there already are not run again, so that it can be stopped and goes on. At the end it
prints the table. --limit: windows of 1024 tokens a row (default: all 255). --stress: `berth eval
--stress` in place of the text. --pairs: what rows lose more than others, paired by window.
"""

import argparse
import json
import lzma
import math
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ROOT / "tests/models"
WINDOW = 1024

# name: what the table says, arguments of `quantize` (None: the checkpoint as it is) and of `eval`,
# tokens of a window.
G = "-g128"
ROWS = {
    "base": ("bf16 weights, float32 arithmetic (the baseline)", None, "", WINDOW),
    "bf16": ("bf16 weights, activations and KV", None, "--activations bf16", WINDOW),
    "int8": ("int8, a scale a channel", "int8", "", WINDOW),
    "int8-tensor": ("int8, a scale a tensor", "int8-tensor", "", WINDOW),
    "w8a8": ("W8A8, dynamic", "w8a8", "", WINDOW),
    "static-128": ("W8A8, static, 128 samples of 512", "w8a8-static 128 512", "", WINDOW),
    "static-32": ("W8A8, static, 32 samples of 128", "w8a8-static 32 128", "", WINDOW),
    "static-128-128": ("W8A8, static, 128 samples of 128", "w8a8-static 128 128", "", WINDOW),
    "static-512": ("W8A8, static, 512 samples of 128", "w8a8-static 512 128", "", WINDOW),
    "static-short": ("W8A8, static, 128 samples of 4", "w8a8-static 128 4", "", WINDOW),
    "rtn": ("int4 g128, round to nearest", "int4-rtn" + G, "", WINDOW),
    "gptq": ("int4 g128, GPTQ", "int4-gptq" + G + " 128 512", "", WINDOW),
    "awq": ("int4 g128, AWQ", "int4-awq" + G + " 128 512", "", WINDOW),
    "qat": ("int4 g128, trained for it (berth-12m-qat-int4)", "qat", "", WINDOW),
    "int4-tensor": ("int4, a scale a tensor", "int4-tensor", "", WINDOW),
    "w4a8-rtn": ("W4A8, round to nearest", "w4a8-rtn", "", WINDOW),
    "w4a8-gptq": ("W4A8, GPTQ", "w4a8-gptq 128 512", "", WINDOW),
    "int8-head": ("int8, lm_head too", None, "--weights int8 --also lm-head", WINDOW),
    "int8-embed": ("int8, embeddings too", None, "--weights int8 --also embeddings", WINDOW),
    "int8-norms": ("int8, norms too", None, "--weights int8 --also norms", WINDOW),
    "int4-head": ("int4 g128 RTN, lm_head too", None, "--weights int4-g128 --also lm-head", WINDOW),
    "int4-embed": (
        "int4 g128 RTN, embeddings too", None, "--weights int4-g128 --also embeddings", WINDOW),
    "base-512": ("baseline, context 512", None, "", 512),
    "kv-512": ("INT8 KV, context 512", None, "--kv int8", 512),
    "kv-1024": ("INT8 KV, context 1024", None, "--kv int8", WINDOW),
    "base-2048": ("baseline, context 2048", None, "", 2048),
    "kv-2048": ("INT8 KV, context 2048", None, "--kv int8", 2048),
}


def run(args):
    print("+ " + " ".join(map(str, args)), file=sys.stderr, flush=True)
    r = subprocess.run(list(map(str, args)), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return r.returncode, r.stdout


def calibration_text(out):
    path = out / "val.txt"
    if not path.exists():
        path.write_bytes(lzma.decompress((MODELS / "val.txt.xz").read_bytes()))
    return path


def checkpoint(o, name, how):
    if how is None:
        return MODELS / o.model
    if how == "qat":
        return pathlib.Path(o.models) / (o.model + "-qat-int4")
    to = o.out / (o.model + "-" + name)
    if not (to / "config.json").exists():
        scheme, *calib = how.split()
        args = [o.berth, "quantize", MODELS / o.model, to, "--scheme", scheme, "--jobs", 1]
        if calib:
            args += ["--calib", calibration_text(o.out)]
            args += ["--calib-samples", calib[0], "--calib-length", calib[1]]
        code, _ = run(args)
        if code != 0:
            sys.exit(f"{name}: quantize failed")
    return to


def baseline_of(window):
    return "base" if window == WINDOW else f"base-{window}"


def evaluate(o, name):
    """The answer of eval, kept in OUT/NAME.LIMIT.json."""
    title, how, extra, window = ROWS[name]
    limit = o.limit * WINDOW // window
    kept = o.out / f"{name}.{o.limit}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    args = [o.berth, "eval", "--model", checkpoint(o, name, how), *extra.split(), "--jobs", 1]
    args += ["--tokens", MODELS / "test_tokens_u16.bin", "--window", window, "--limit", limit]
    args += ["--scores", o.out / f"{name}.{o.limit}.scores", "--json", "--quiet"]
    if name != baseline_of(window):
        evaluate(o, baseline_of(window))
        args += ["--baseline", o.out / f"{baseline_of(window)}.{o.limit}.scores"]
    code, text = run(args)
    if code != 0:
        sys.exit(f"{name}: eval failed")
    kept.write_text(text)
    return json.loads(text)


def table(o, names):
    print("| scheme | windows | perplexity | against the baseline, nats | 95% interval | perplexity "
          "| likeliest token right |")
    print("| --- | ---: | ---: | ---: | --- | ---: | ---: |")
    for name in names:
        a = evaluate(o, name)
        line = f"| {ROWS[name][0]} | {a['n_windows']} | {a['perplexity']:.3f} "
        if "delta_nll" in a:
            low, high = a["delta_ci95"]
            change = a["perplexity"] / a["baseline_perplexity"] - 1
            line += f"| {a['delta_nll']:+.5f} | {low:+.5f} .. {high:+.5f} | {100 * change:+.2f}% "
        else:
            line += "| | | "
        print(line + f"| {100 * a['accuracy_fraction']:.2f}% |", flush=True)


def student_975(df):
    """Abramowitz and Stegun 26.7.5, for ten degrees of freedom and more."""
    z = 1.959964
    return (z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
            + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3))


def pairs(o, wanted):
    print("| | nats | 95% interval |")
    print("| --- | ---: | --- |")
    for pair in wanted.split(","):
        a, b = pair.split(":")
        lost = []
        for name in (a, b):
            evaluate(o, name)
            kept = json.loads((o.out / f"{name}.{o.limit}.scores").read_text())
            lost.append([w["nll"] for w in kept["windows"]])
        d = [x - y for x, y in zip(*lost, strict=True)]
        mean = statistics.fmean(d)
        half = student_975(len(d) - 1) * statistics.stdev(d) / math.sqrt(len(d))
        print(f"| {ROWS[a][0]}, less {ROWS[b][0]} | {mean:+.5f} | {mean - half:+.5f} .. "
              f"{mean + half:+.5f} |")


def stress(o, names):
    print("| scheme | inputs | all finite | greatest absolute logit |")
    print("| --- | ---: | --- | ---: |")
    for name in names:
        title, how, extra, window = ROWS[name]
        model = checkpoint(o, name, how)
        args = [o.berth, "eval", "--model", model, *extra.split(), "--stress", "--jobs", 1]
        code, text = run(args + ["--json", "--quiet"])
        if code not in (0, 1):
            sys.exit(f"{name}: eval --stress failed")
        a = json.loads(text)
        worst = max(r["max_abs_logit"] for r in a["rows"])
        finite = "yes" if a["finite"] else "NO"
        print(f"| {title} | {len(a['rows'])} | {finite} | {worst:.1f} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("berth", type=pathlib.Path)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--model", default="berth-12m")
    p.add_argument("--limit", type=int, default=255)
    p.add_argument("--rows", default=",".join(ROWS))
    p.add_argument("--models", default=MODELS, help="folder of berth-12m-qat-int4")
    p.add_argument("--stress", action="store_true")
    p.add_argument("--pairs")
    o = p.parse_args()
    o.berth, o.out = o.berth.resolve(), o.out.resolve()
    o.out.mkdir(parents=True, exist_ok=True)
    names = o.rows.split(",")
    unknown = [n for n in names if n not in ROWS]
    if unknown:
        p.error(f"--rows: {', '.join(unknown)} not in {', '.join(ROWS)}")
    if o.pairs is not None:
        pairs(o, o.pairs)
    else:
        (stress if o.stress else table)(o, names)


main()
