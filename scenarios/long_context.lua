-- Long documents among short chats: one prompt of 30,000 tokens stalls everybody who is reading.
--
-- Nine requests in ten are chats (400 tokens in, 200 out), one is a document of 30,000 tokens. A
-- step that prefills a whole document takes a second, and in that time no chat gets a token.
--
-- Teaches: chunked prefill bounds the stall, and the token budget sets its price. A step works on
-- at most max_batched_tokens, so the longest gap between two tokens of a chat is the time of one
-- such step.
--   whole    no chunks: a prefill is a step of its own, and documents in a row add up to seconds
--   8192     a third of a second
--   2048     the default: a tenth, at no cost that could be seen
--   256      gaps that nobody notices, but the document pays: every chunk reads all weights again
--
-- Look at: `in SLO` (an answer's largest gap within 0.2 s) against TTFT p95, which is a document's;
-- in --json itl_s.max against ttft_s.p99. Of the first row's stalls the 99th percentile of ITL sees
-- nothing: they are few among 100,000 gaps, and yet one answer in three has one.
--
--   berth simulate scenarios/long_context.lua --json
local w, slo = require "berth.workload", require "berth.slo"
return {
  name = "long-context", seed = 11,
  description = "Documents of 30,000 tokens among chats: what chunked prefill costs and saves",
  model = "llama-3.1-8b", gpu = "h100-sxm", weights = "bf16",
  variants = {
    { label = "whole", batching = { chunked_prefill = false, max_batched_tokens = 32768 } },
    { label = "8192", batching = { max_batched_tokens = 8192 } },
    { label = "2048", batching = { max_batched_tokens = 2048 } },
    { label = "256", batching = { max_batched_tokens = 256 } },
  },
  workload = w.poisson {
    rate_per_s = 2, duration_s = 300,
    prompt = w.mixture { parts = { 400, 30000 }, weights = { 0.9, 0.1 } },
    output = 200,
  },
  slo = slo { itl_s = { p99 = 0.2 } },
}
