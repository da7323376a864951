-- Speculative decoding: a gift to a lonely request, a tax on a full batch.
--
-- A 1.1B draft proposes four tokens, Llama-2-13B checks them in one step and keeps on average
-- (1 - 0.72^5) / (1 - 0.72) = 2.88 tokens a step at 72% acceptance.
--
-- Teaches: at batch 1 the check is nearly free, since the step waits for the weights whatever it
-- computes. At batch 128 five times as many tokens meet a device that has arithmetic to do, and the
-- rejected ones were work for nothing. The gain turns into a loss in between, here at about 64;
-- switching by batch size keeps the one and avoids the other.
--   off      no speculation
--   always   K = 4 whatever the batch
--   switch   K = 4 up to 16 sequences, off above (with hysteresis; the draft's KV catches up)
-- max_seqs stands for the batch: 256 requests wait from the start, so the server runs as many
-- sequences as it may.
--
-- Look at: tok/s of the three variants at each max_seqs; --json has acceptance_rate, accepted_len.
--
--   berth simulate scenarios/spec_decode.lua
local w = require "berth.workload"
local draft = { draft = "tinyllama-1.1b", k = 4, acceptance = 0.72 }
return {
  name = "spec-decode", seed = 17,
  description = "13B with a 1.1B draft: speculation by batch size",
  model = "llama-2-13b", gpu = "a100-80-sxm", weights = "fp16", kv = { dtype = "int8" },
  warmup = 0,
  batching = { max_seqs = { 1, 4, 16, 64, 128 } },
  variants = {
    { label = "off", spec = false },
    { label = "always", spec = draft },
    { label = "switch", spec = {
      draft = draft.draft, k = draft.k, acceptance = draft.acceptance, off_above_batch = 16,
    } },
  },
  workload = w.closed { users = 256, n_requests = 256, prompt = 128, output = 128 },
}
