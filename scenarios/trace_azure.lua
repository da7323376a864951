-- An hour of production: what the averages of a trace hide.
--
-- 19,366 requests that a Microsoft Azure service for conversation received in 58 minutes of 16
-- November 2023 (traces/AzureLLMInferenceTrace_conv.csv, CC BY 4.0, Azure/AzurePublicDataset), here
-- at three times their rate, as next year's traffic, on Llama-2-7B and A100s.
--
-- Teaches: throughput says nothing about a plan. Two replicas fall behind. Three, four and five
-- finish every request at the same rate a second; what differs is how long the bursts make people
-- wait. Take the smallest number that holds the SLO, not the smallest that keeps up.
-- And mind what averages hide: 1,612 requests are longer than the model's 4,096 tokens.
-- over_length = "allow" serves them all the same; "reject" would count them as missed SLOs.
--
-- Look at: TTFT p95 and `in SLO` against req/s, down the rows.
--
--   berth trace describe scenarios/traces/AzureLLMInferenceTrace_conv.csv
--   berth simulate scenarios/trace_azure.lua
--   berth plan scenarios/trace_azure.lua --set replicas=auto
local w, slo = require "berth.workload", require "berth.slo"
return {
  name = "trace-azure", seed = 1,
  description = "Azure's conversation traffic at three times its rate on Llama-2-7B",
  model = "llama-2-7b", gpu = "a100-80-sxm", weights = "fp16",
  over_length = "allow",
  batching = { max_seqs = 128, max_batched_tokens = 512 },
  replicas = { 2, 3, 4, 5 },
  workload = w.trace { file = "traces/AzureLLMInferenceTrace_conv.csv", rate_scale = 3 },
  slo = slo { ttft_s = { p95 = 1.0 }, tpot_s = { p95 = 0.1 } },
}
