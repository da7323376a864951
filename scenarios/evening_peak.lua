-- The evening peak: the tail explodes although neither the arithmetic nor the memory bus is full.
--
-- A chat service on Llama-2-13B with INT4 weights on one RTX 4090. From 0.5 requests/s the load
-- climbs to 2.9 and falls again. What a dashboard shows at the peak: first tokens after ten
-- seconds, FLOPs at 40% and memory bandwidth at 35% of their peaks. What it does not show: why.
--
-- Teaches: the same picture has two causes, and each has its own cure.
--   kv-full   the KV pool is full: 18,640 tokens of FP16 KV hold about 22 conversations, and the
--             23rd waits for memory. The peak's windows name `kv`.
--   max-seqs  the twin: memory is plentiful (INT8 KV), but the server was told to run 11 sequences.
--             The peak's windows name `max_seqs`; more memory would change nothing.
--   int8-kv   the cure of the first: INT8 KV holds twice the tokens, and the tail is gone.
--
-- Look at: TTFT p95 and `bottleneck` of the three rows; in --json, metrics.windows[] tells the hour
-- at which each became the limit (kv_blocked_fraction, seqs_blocked_fraction).
--
--   berth simulate scenarios/evening_peak.lua
--   berth simulate scenarios/evening_peak.lua --timeseries peak.csv
local w, slo = require "berth.workload", require "berth.slo"
return {
  name = "evening-peak", seed = 3,
  description = "An evening's peak on one RTX 4090: full KV pool, or a limit on sequences?",
  model = "llama-2-13b", gpu = "rtx4090", weights = "int4-g128",
  preempt = "recompute",
  variants = {
    { label = "kv-full", kv = { dtype = "fp16" } },
    { label = "max-seqs", kv = { dtype = "int8" }, batching = { max_seqs = 11 } },
    { label = "int8-kv", kv = { dtype = "int8" } },
  },
  workload = w.diurnal {
    points = {
      { t_s = 0, rate_per_s = 0.5 },
      { t_s = 300, rate_per_s = 0.5 },
      { t_s = 500, rate_per_s = 2.9 },
      { t_s = 800, rate_per_s = 2.9 },
      { t_s = 1000, rate_per_s = 0.5 },
    },
    duration_s = 1200,
    prompt = w.lognormal { mean = 700, p95 = 1200 },
    output = w.lognormal { mean = 120, p95 = 250 },
  },
  slo = slo { ttft_s = { p99 = 1.0 } },
}
