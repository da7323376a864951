-- A shared system prompt: how much KV memory does it save?
--
-- Every prompt starts with the same 500 tokens. With the prefix cache their KV blocks are stored
-- once and used by all sequences; without it each sequence stores its own.
--
-- Teaches: the saving is arithmetic, and it depends on what is NOT shared. With P shared and Q
-- private tokens a sequence (prompt and answer) and many sequences, memory falls by P / (P + Q):
-- 500 of 880 tokens saves 57%; 500 of 3,333 saves 15%. Only whole blocks are shared, so with 16
-- tokens a block 496 of the 500 are. Compute falls too: the cached part is not prefilled again.
--
-- Here 48 users ask one question after another: 816 prompt tokens, 64 of answer, 55 blocks a
-- sequence, 31 of them shared. 48 sequences take 48 x 55 = 2,640 blocks alone and
-- 31 + 48 x 24 = 1,183 together: 55% less.
--
-- Look at: `KV used` and TTFT of the two rows; in --json kv_blocks_peak and prefix_hit_fraction.
--
--   berth simulate scenarios/prefix_share.lua
local w = require "berth.workload"
return {
  name = "prefix-share", seed = 5,
  description = "48 users, 500 of 880 tokens shared: KV memory with and without the prefix cache",
  model = "llama-2-13b", gpu = "h200", weights = "int8",
  batching = { max_seqs = 64 },
  variants = {
    { label = "private", prefix_cache = false },
    { label = "shared", prefix_cache = true },
  },
  workload = w.closed {
    users = 48, n_requests = 1920,
    think_s = w.exponential { mean = 0.2 },
    prompt = 816, shared_prefix_tokens = 500,
    output = 64,
  },
}
