-- What others measured, as the user imported it, and what was fitted to the user's own runs.

-- Tables of operations, in the compact form of shipped calibrations (sim/cost/calib.h): a table of
-- ten thousand points is one row, which is read only when its card and operation are asked for.
CREATE TABLE imports (
    import_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE CHECK (name <> ''), -- "h200__vllm-0.24.0__gemm__gemm_perf.txt"
    format TEXT NOT NULL CHECK (format <> ''),    -- "aiconfigurator", "llmservingsim", "vidur"
    gpu TEXT NOT NULL CHECK (gpu <> ''),          -- catalog name
    stack TEXT NOT NULL CHECK (stack <> ''),
    stack_version TEXT NOT NULL,                  -- '' unknown
    op TEXT NOT NULL CHECK (op <> ''),            -- "gemm", ..., "skew"
    model TEXT NOT NULL,                          -- that was profiled; '' where shapes are in the rows
    samples INTEGER NOT NULL CHECK (samples > 0),
    error_median REAL,                            -- leave-one-out, relative, of its worst surface;
    error_p90 REAL,                               -- NULL: too few points
    text TEXT NOT NULL CHECK (text <> ''),
    provenance_id INTEGER NOT NULL REFERENCES provenance
) STRICT;
CREATE INDEX imports_by_gpu ON imports (gpu, stack);

-- Fits of a stack on a card to a run of it (berth fit).
CREATE TABLE fits (
    name TEXT PRIMARY KEY CHECK (name <> ''),
    stack TEXT NOT NULL CHECK (stack <> ''),      -- holds for this stack ..
    gpu TEXT NOT NULL CHECK (gpu <> ''),          -- .. on this GPU
    model TEXT NOT NULL,                          -- that was served
    step_overhead_s REAL NOT NULL CHECK (step_overhead_s >= 0),
    efficiency REAL NOT NULL CHECK (efficiency > 0),
    step_error REAL NOT NULL CHECK (step_error >= 0), -- relative, what the fit left
    requests INTEGER NOT NULL CHECK (requests > 0),   -- that it was fitted to
    provenance_id INTEGER NOT NULL REFERENCES provenance
) STRICT, WITHOUT ROWID;

-- Whole-engine benchmarks (vllm bench serve, llama-bench): figures, not operations.
CREATE TABLE benchmarks (
    benchmark_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE CHECK (name <> ''), -- "vllm-bench h200 vllm-0.19 run.json"
    format TEXT NOT NULL CHECK (format <> ''),    -- "vllm-bench", "llama-bench"
    model TEXT NOT NULL,                          -- as the file names it
    gpu TEXT NOT NULL CHECK (gpu <> ''),
    stack TEXT NOT NULL,
    provenance_id INTEGER NOT NULL REFERENCES provenance
) STRICT;

CREATE TABLE benchmark_figures (
    benchmark_id INTEGER NOT NULL REFERENCES benchmarks ON DELETE CASCADE,
    test TEXT NOT NULL CHECK (test <> ''),        -- what was run: "512 in, 128 out, 16 users"
    metric TEXT NOT NULL CHECK (metric <> ''),    -- "ttft mean"
    unit TEXT NOT NULL CHECK (unit <> ''),
    value REAL NOT NULL,
    PRIMARY KEY (benchmark_id, test, metric)
) STRICT, WITHOUT ROWID;
