#!/usr/bin/env python3
"""Prints what scripts/validation_cpu measured: validation_table.py OUT NAME:RATE..."""

import json
import pathlib
import sys

GATED = ["ttft_s.p50", "ttft_s.p95", "tpot_s.p50", "tpot_s.p95", "e2e_s.p50", "e2e_s.p95"]
LIMIT = 0.1


def error(before, after, measured):
    """Of the nearer end of the range of predictions; 0 inside."""
    low, high = min(before, after), max(before, after)
    return low / measured - 1 if measured < low else high / measured - 1 if measured > high else 0


def rates(out, name):
    at = [json.loads((out / f"{name}.calibration{i}.json").read_text()) for i in (1, 2)]
    return [c["host"]["fp32_flops_per_s"] / 1e9 for c in at]


def main():
    out, good = pathlib.Path(sys.argv[1]), True
    for load in sys.argv[2:]:
        name, rate = load.split(":")
        one = json.loads((out / f"{name}.json").read_text())
        two = json.loads((out / f"{name}.after.json").read_text())
        after = {r["metric"]: r["predicted"] for r in two["rows"]}
        print(f"### {name}: {rate} requests a second\n\n{one['requests']} requests, {one['runs']} runs of "
              f"the engine; {' and '.join(f'{r:.1f}' for r in rates(out, name))} GFLOP/s of one thread "
              "before and after.\n")
        print("| metric | predicted, calibrated before | after | engine | error | engine's spread "
              "| within |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
        for r in one["rows"]:
            if r["metric"] not in GATED:
                continue
            e = error(r["predicted"], after[r["metric"]], r["measured"])
            within = abs(e) <= max(LIMIT, r["noise_fraction"])
            good = good and within
            print(f"| {r['metric']}, s | {r['predicted']:.4g} | {after[r['metric']]:.4g} | "
                  f"{r['measured']:.4g} | {100 * e:+.1f}% | {100 * r['noise_fraction']:.1f}% | "
                  f"{'yes' if within else 'NO'} |")
        print("\n| step | steps | tokens | engine, ms | predicted, calibrated before, ms | error |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        for s in one["steps"]:
            print(f"| {s['kind']} | {s['steps']} | {s['tokens_mean']:.1f} | {1e3 * s['measured_s']:.3f} "
                  f"| {1e3 * s['predicted_s']:.3f} | {100 * s['error_fraction']:+.1f}% |")
        print()
    return 0 if good else 1


sys.exit(main())
