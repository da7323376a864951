-- berth: the scenario library's root.
local berth = {}

-- Several values for one key: the planner searches over them. A plain list does the same wherever
-- one value is expected; `any` is for keys that take a list or a table themselves.
function berth.any(values)
  if type(values) ~= "table" or #values == 0 then
    error("berth.any: expected a list of values, got " .. type(values), 2)
  end
  return { __berth = "any", values = values }
end

-- Iterates over a table in the order of its keys (numbers, then strings): `pairs` has no order.
function berth.sorted_pairs(t)
  local keys = {}
  for k in pairs(t) do
    if type(k) ~= "number" and type(k) ~= "string" then
      error("berth.sorted_pairs: expected keys that are numbers or strings, got " .. type(k), 2)
    end
    keys[#keys + 1] = k
  end
  table.sort(keys, function(a, b)
    if type(a) ~= type(b) then
      return type(a) == "number"
    end
    return a < b
  end)
  local i = 0
  return function()
    i = i + 1
    if keys[i] ~= nil then
      return keys[i], t[keys[i]]
    end
  end
end

return berth
