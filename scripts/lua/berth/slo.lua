-- berth.slo: the service-level objectives of a scenario.
--   slo { e2e_s = { p95 = 1.5 }, ttft_s = { p99 = 0.5 }, memory_headroom = 0.10 }
-- Metrics: ttft_s, tpot_s, itl_s, e2e_s, queue_s; statistics: mean, p50, p90, p95, p99, max.
return function(limits)
  if type(limits) ~= "table" then
    error("slo: expected a table of limits, got " .. type(limits), 2)
  end
  limits.__berth = "slo"
  return limits
end
