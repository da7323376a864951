-- The overnight job and the person at the keyboard want different servers.
--
-- 512 users keep the queue full, so the server always runs as many sequences as it may. The larger
-- the batch, the more tokens a second and the cheaper a token: the weights are read once for all.
-- And the longer each step, which is what a reader feels.
--
-- Teaches: tuning for throughput alone breaks latency. Reading speed asks for a token each 50 ms
-- (20 a second); of these rows the cheapest misses it, and the best that keeps it is not the one a
-- throughput benchmark would pick.
--
-- Look at: tok/s, TPOT and `in SLO` down the rows; in --json cost_usd_per_mtok.
--
--   berth simulate scenarios/batch_job.lua
--   berth compare RUN RUN    (run ids are printed on stderr)
local w, slo = require "berth.workload", require "berth.slo"
return {
  name = "batch-job", seed = 13,
  description = "Throughput against reading speed as the batch grows",
  model = "llama-2-13b", gpu = "a100-80-sxm", weights = "fp16", kv = { dtype = "int8" },
  prefix_cache = false,
  batching = { max_seqs = { 4, 8, 16, 32, 64, 128, 192 } },
  workload = w.closed {
    users = 512, n_requests = 1536,
    prompt = w.lognormal { mean = 400, p95 = 800 },
    output = w.lognormal { mean = 150, p95 = 300 },
  },
  slo = slo { tpot_s = { p95 = 0.05 } },
}
