-- Customer support on a 13B model: the cheapest way to hold P95 under 1.5 s at 50 requests/s.
--
-- Teaches: the whole search. GPUs, tensor parallelism, quantisation of weights and activations, KV
-- cache type and block size, preemption and speculation are searched together, because they
-- interact: what quantisation saves in memory decides how many sequences fit, and so the batch.
local w, slo = require "berth.workload", require "berth.slo"
return {
  name = "support-13b", seed = 7,
  description = "Customer support on Llama-2-13B, 50 requests/s, P95 of E2E within 1.5 s",
  model = "llama-2-13b", stack = "berth",
  gpu = { "rtx4090", "l40s", "a100-80-sxm", "h200" }, tp = { 1, 2 },
  replicas = "auto", redundancy = 1,
  weights = { "fp16", "int8", "int4-g128" }, activations = { "fp16", "int8-dynamic" },
  kv = { dtype = { "fp16", "int8" }, block_tokens = { 8, 16, 32 } },
  batching = {
    mode = "continuous", max_seqs = "auto",
    window_ms = w.dynamic { low = 2, high = 10 },
  },
  preempt = { "recompute", "swap" },
  spec = {
    false,
    { draft = "tinyllama-1.1b", k = 4, acceptance = 0.72, off_above_batch = 8 },
  },
  workload = w.poisson {
    rate_per_s = 50, duration_s = 120,
    prompt = w.lognormal { mean = 650, p95 = 900 },
    shared_prefix_tokens = 500, -- the system prompt is part of each prompt
    output = w.lognormal { mean = 80, p95 = 200 },
  },
  slo = slo { e2e_s = { p95 = 1.5 }, memory_headroom = 0.10, accuracy_drop_points = 1.5 },
  budget = { usd_per_h = 20 },
}
