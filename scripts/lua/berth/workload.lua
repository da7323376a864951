-- berth.workload: who sends what, when. Each constructor takes one table; the host checks its keys.
local workload = {}

local function tagged(kind)
  return function(t)
    if type(t) ~= "table" then
      error("workload." .. kind .. ": expected a table, got " .. type(t), 2)
    end
    t.__berth = kind
    return t
  end
end

-- Arrivals.
for _, kind in ipairs {
  "poisson", "gamma", "weibull", "constant", "diurnal", "closed", "servegen", "trace",
} do
  workload[kind] = tagged(kind)
end

-- Distributions of lengths (tokens) and pauses (seconds).
for _, kind in ipairs { "uniform", "lognormal", "exponential", "pareto", "empirical", "mixture" } do
  workload[kind] = tagged(kind)
end

-- Always the same value; a plain number says the same.
function workload.const(value)
  return { __berth = "const", value = value }
end

-- A scheduling window that moves with the load, in ms: w.dynamic { low = 2, high = 10 }.
workload.dynamic = tagged "dynamic"

return workload
