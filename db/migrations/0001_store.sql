-- The store: what was measured, imported, simulated and planned, each with its provenance.

-- Facts about the store itself: 'catalog_hash' (SHA-256 of the catalog text that was last loaded).
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Where rows come from. No sample, GPU, model or price exists without one.
CREATE TABLE provenance (
    provenance_id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL CHECK (kind IN ('shipped', 'measured', 'imported', 'fitted', 'user')),
    source TEXT NOT NULL CHECK (source <> ''), -- file, repository, address or "berth calibrate"
    source_date TEXT NOT NULL,                 -- as the source gives it, may be ''
    licence TEXT NOT NULL,                     -- may be '' for facts
    content_sha256 TEXT NOT NULL,              -- of what was read, may be ''
    created_utc TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
) STRICT;

-- GPUs: the catalog's, and this machine's own processor ("host") as calibration measured it.
CREATE TABLE gpus (
    name TEXT PRIMARY KEY CHECK (name <> ''),
    product TEXT NOT NULL,
    family TEXT NOT NULL CHECK (family IN ('cpu', 'ampere', 'ada', 'hopper', 'blackwell', 'cdna3')),
    cc INTEGER NOT NULL CHECK (cc >= 0),                     -- compute capability x 10, 0 none
    memory_bytes INTEGER NOT NULL CHECK (memory_bytes > 0),
    usable_bytes INTEGER NOT NULL CHECK (usable_bytes > 0),  -- what a program sees
    usable_estimated INTEGER NOT NULL CHECK (usable_estimated IN (0, 1)),
    mem_bytes_per_s REAL NOT NULL CHECK (mem_bytes_per_s > 0),
    fp32_flops_per_s REAL NOT NULL,                          -- dense rates, 0: no such unit
    fp16_flops_per_s REAL NOT NULL,
    int8_ops_per_s REAL NOT NULL,
    fp8_flops_per_s REAL NOT NULL,
    int4_ops_per_s REAL NOT NULL,
    pcie_gen INTEGER NOT NULL,
    pcie_bytes_per_s REAL NOT NULL,                          -- one way, by the standard
    nvlink_bytes_per_s REAL NOT NULL,                        -- both ways together, 0: none
    tdp_w REAL NOT NULL,
    source TEXT NOT NULL,
    source_date TEXT NOT NULL,
    notes TEXT NOT NULL,
    provenance_id INTEGER NOT NULL REFERENCES provenance
) STRICT, WITHOUT ROWID;

-- Prices of one GPU for one hour.
CREATE TABLE prices (
    gpu TEXT NOT NULL REFERENCES gpus,
    provider TEXT NOT NULL CHECK (provider <> ''),
    term TEXT NOT NULL CHECK (term <> ''),
    usd_per_h REAL NOT NULL CHECK (usd_per_h >= 0),
    source_date TEXT NOT NULL CHECK (source_date <> ''),
    offer TEXT NOT NULL,
    provenance_id INTEGER NOT NULL REFERENCES provenance,
    PRIMARY KEY (gpu, provider, term)
) STRICT, WITHOUT ROWID;

-- Models of the catalog.
CREATE TABLE models (
    name TEXT PRIMARY KEY CHECK (name <> ''),
    hf_id TEXT NOT NULL,
    vocab_family TEXT NOT NULL,
    params INTEGER NOT NULL CHECK (params > 0),
    hidden INTEGER NOT NULL,
    n_layers INTEGER NOT NULL,
    n_heads INTEGER NOT NULL,
    n_kv_heads INTEGER NOT NULL,
    head_dim INTEGER NOT NULL,
    intermediate INTEGER NOT NULL,
    vocab INTEGER NOT NULL,
    max_position INTEGER NOT NULL,            -- tokens
    checkpoint TEXT NOT NULL,                 -- weight format
    source TEXT NOT NULL,
    source_date TEXT NOT NULL,
    notes TEXT NOT NULL,
    provenance_id INTEGER NOT NULL REFERENCES provenance
) STRICT, WITHOUT ROWID;

-- One sitting of measurements on one GPU with one stack.
CREATE TABLE calibrations (
    calibration_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE CHECK (name <> ''),
    gpu TEXT NOT NULL,                        -- catalog name
    stack TEXT NOT NULL CHECK (stack <> ''),
    stack_version TEXT NOT NULL,              -- another's version, or the commit of ours
    engine_sha256 TEXT NOT NULL,              -- of the engine's sources measured, '' for others'
    trust TEXT NOT NULL CHECK (trust IN ('measured', 'imported', 'fitted', 'transferred')),
    driver TEXT NOT NULL,
    sm_clock_mhz INTEGER NOT NULL CHECK (sm_clock_mhz >= 0),   -- 0: unknown
    mem_clock_mhz INTEGER NOT NULL CHECK (mem_clock_mhz >= 0), -- 0: unknown
    power_limit_w REAL NOT NULL CHECK (power_limit_w >= 0),    -- 0: unknown
    started_utc TEXT NOT NULL,
    notes TEXT NOT NULL,
    provenance_id INTEGER NOT NULL REFERENCES provenance
) STRICT;
CREATE INDEX calibrations_by_gpu ON calibrations (gpu, stack);

-- Times of operations. Axes that an operation does not have are 0.
CREATE TABLE operation_samples (
    calibration_id INTEGER NOT NULL REFERENCES calibrations ON DELETE CASCADE,
    op TEXT NOT NULL CHECK (op <> ''),        -- "gemm", "attn_decode", "attn_prefill", ...
    weights TEXT NOT NULL,                    -- weight format, '' where there are no weights
    activations TEXT NOT NULL,
    kv TEXT NOT NULL,
    m_tokens INTEGER NOT NULL,                -- rows of the activation
    n_out INTEGER NOT NULL,                   -- output features
    k_in INTEGER NOT NULL,                    -- input features
    n_seqs INTEGER NOT NULL,
    context_tokens INTEGER NOT NULL,          -- KV tokens of a sequence
    n_heads INTEGER NOT NULL,
    n_kv_heads INTEGER NOT NULL,
    head_dim INTEGER NOT NULL,
    block_tokens INTEGER NOT NULL,
    tp INTEGER NOT NULL,                      -- ranks of a collective
    median_ns REAL NOT NULL CHECK (median_ns > 0),
    spread_ns REAL NOT NULL CHECK (spread_ns >= 0), -- half the interquartile range
    n_repeats INTEGER NOT NULL CHECK (n_repeats >= 0), -- 0: unknown
    bytes INTEGER NOT NULL CHECK (bytes >= 0), -- device memory traffic, 0: unknown
    flops INTEGER NOT NULL CHECK (flops >= 0), -- 0: unknown
    PRIMARY KEY (calibration_id, op, weights, activations, kv, m_tokens, n_out, k_in, n_seqs,
                 context_tokens, n_heads, n_kv_heads, head_dim, block_tokens, tp)
) STRICT, WITHOUT ROWID;

-- Rates of copies between host and device by size.
CREATE TABLE pcie_samples (
    calibration_id INTEGER NOT NULL REFERENCES calibrations ON DELETE CASCADE,
    direction TEXT NOT NULL CHECK (direction IN ('to_device', 'to_host', 'duplex')),
    copy_bytes INTEGER NOT NULL CHECK (copy_bytes > 0),
    bytes_per_s REAL NOT NULL CHECK (bytes_per_s > 0),
    spread_bytes_per_s REAL NOT NULL CHECK (spread_bytes_per_s >= 0),
    PRIMARY KEY (calibration_id, direction, copy_bytes)
) STRICT, WITHOUT ROWID;

-- Draft tokens proposed and accepted, given that all before them were.
CREATE TABLE acceptance_samples (
    target TEXT NOT NULL CHECK (target <> ''),
    draft TEXT NOT NULL CHECK (draft <> ''),
    temperature REAL NOT NULL CHECK (temperature >= 0),
    text_kind TEXT NOT NULL CHECK (text_kind <> ''),
    position INTEGER NOT NULL CHECK (position >= 1), -- in the proposal, from 1
    n_proposed INTEGER NOT NULL CHECK (n_proposed > 0),
    n_accepted INTEGER NOT NULL CHECK (n_accepted BETWEEN 0 AND n_proposed),
    provenance_id INTEGER NOT NULL REFERENCES provenance,
    PRIMARY KEY (target, draft, temperature, text_kind, position, provenance_id)
) STRICT, WITHOUT ROWID;

-- Accuracy of a quantised model beside its 16-bit self.
CREATE TABLE accuracy (
    accuracy_id INTEGER PRIMARY KEY,
    model TEXT NOT NULL CHECK (model <> ''),
    weights TEXT NOT NULL,
    activations TEXT NOT NULL,
    kv TEXT NOT NULL,
    method TEXT NOT NULL,                     -- "rtn", "gptq", "awq", "qat", ...
    metric TEXT NOT NULL CHECK (metric <> ''), -- "perplexity wikitext2", "mmlu", ...
    unit TEXT NOT NULL,                       -- "points", "nats", ...
    baseline REAL NOT NULL,                   -- the 16-bit model's value
    value REAL NOT NULL,
    ci95 REAL,                                -- half width, NULL unknown
    kind TEXT NOT NULL CHECK (kind IN ('measured', 'published')),
    provenance_id INTEGER NOT NULL REFERENCES provenance
) STRICT;
CREATE INDEX accuracy_by_model ON accuracy (model);

-- One command that produced results. What it produced hangs from its row.
CREATE TABLE runs (
    run_id INTEGER PRIMARY KEY,
    command TEXT NOT NULL CHECK (command <> ''), -- "replay", "plan", ...
    name TEXT NOT NULL,                       -- the scenario's or trace's name
    status TEXT NOT NULL CHECK (status IN ('running', 'done', 'failed', 'stopped')),
    started_utc TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')),
    ended_utc TEXT,                           -- NULL while it runs, or when it was cut off
    version TEXT NOT NULL,                    -- of the program
    commit_id TEXT NOT NULL,                  -- '' when built outside a repository
    commit_dirty INTEGER NOT NULL CHECK (commit_dirty IN (0, 1)),
    build_type TEXT NOT NULL,
    scenario_text TEXT NOT NULL,              -- '' without one
    scenario_sha256 TEXT NOT NULL,            -- of scenario_text
    trace_name TEXT NOT NULL,                 -- '' without one
    trace_sha256 TEXT NOT NULL,
    seed INTEGER NOT NULL,
    executor TEXT NOT NULL CHECK (executor IN ('sim', 'cpu', 'cuda')),
    stack TEXT NOT NULL,
    device TEXT NOT NULL,                     -- '' for a simulation
    driver TEXT NOT NULL,
    requests_total INTEGER NOT NULL DEFAULT 0, -- ended in the run
    requests_kept INTEGER NOT NULL DEFAULT 0   -- of those, rows in requests
) STRICT;
CREATE INDEX runs_by_start ON runs (started_utc);

-- The metrics of each configuration of a run. JSON columns are checked by the statements that write
-- them: a CHECK may not call json_valid while trusted_schema is off.
CREATE TABLE summaries (
    run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    summary_index INTEGER NOT NULL CHECK (summary_index >= 0),
    label TEXT NOT NULL,
    model TEXT NOT NULL,
    gpu TEXT NOT NULL,
    trust TEXT NOT NULL,
    config_json TEXT NOT NULL,
    metrics_json TEXT NOT NULL,
    arrived INTEGER NOT NULL,
    finished INTEGER NOT NULL,
    throughput_req_per_s REAL NOT NULL,
    throughput_out_tok_per_s REAL NOT NULL,
    slo_attainment_fraction REAL,             -- NULL without SLOs
    ttft_s_p95 REAL,                          -- NULL when nothing finished
    ttft_s_p99 REAL,
    tpot_s_mean REAL,
    e2e_s_p95 REAL,
    e2e_s_p99 REAL,
    gpu_busy_fraction REAL NOT NULL,
    cost_usd_per_h REAL,                      -- NULL unpriced
    bottleneck TEXT NOT NULL,
    PRIMARY KEY (run_id, summary_index)
) STRICT, WITHOUT ROWID;
CREATE INDEX summaries_by_model ON summaries (model, gpu);

-- Plans: the question, and the candidates in their ranking.
CREATE TABLE plans (
    run_id INTEGER PRIMARY KEY REFERENCES runs ON DELETE CASCADE,
    question_json TEXT NOT NULL,
    n_candidates INTEGER NOT NULL CHECK (n_candidates >= 0),
    n_feasible INTEGER NOT NULL CHECK (n_feasible >= 0),
    best_rank INTEGER                         -- NULL when no plan is feasible
) STRICT;

CREATE TABLE plan_candidates (
    run_id INTEGER NOT NULL REFERENCES plans ON DELETE CASCADE,
    rank INTEGER NOT NULL CHECK (rank >= 0),
    verdict TEXT NOT NULL CHECK (verdict IN ('feasible', 'marginal', 'infeasible', 'unverified')),
    reason TEXT NOT NULL,
    model TEXT NOT NULL,
    gpu TEXT NOT NULL,
    replicas INTEGER NOT NULL,
    cards INTEGER NOT NULL,
    cost_usd_per_h REAL,                      -- NULL unpriced
    capacity_req_per_s REAL,                  -- NULL not known
    trust TEXT NOT NULL,
    config_json TEXT NOT NULL,
    metrics_json TEXT,                        -- NULL when it was not simulated
    PRIMARY KEY (run_id, rank)
) STRICT, WITHOUT ROWID;

-- Requests of a run: times in ns since the run's time zero, NULL where it did not happen.
CREATE TABLE requests (
    run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    summary_index INTEGER NOT NULL,
    request_index INTEGER NOT NULL,           -- in order of end
    user_id INTEGER NOT NULL,
    arrival_ns INTEGER NOT NULL,
    scheduled_ns INTEGER,
    first_token_ns INTEGER,
    last_token_ns INTEGER,
    end_ns INTEGER NOT NULL,
    n_prompt INTEGER NOT NULL,                -- tokens
    n_output INTEGER NOT NULL,                -- tokens delivered
    n_cached INTEGER NOT NULL,                -- prompt tokens from the prefix cache
    n_preempt_swap INTEGER NOT NULL,
    n_preempt_recompute INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    replica INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    reject TEXT NOT NULL,
    degraded INTEGER NOT NULL CHECK (degraded IN (0, 1)),
    PRIMARY KEY (run_id, summary_index, request_index)
) STRICT, WITHOUT ROWID;

-- State over time, all replicas together.
CREATE TABLE timeseries (
    run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    summary_index INTEGER NOT NULL,
    t_ns INTEGER NOT NULL,
    running INTEGER NOT NULL,
    waiting INTEGER NOT NULL,
    swapped INTEGER NOT NULL,
    kv_blocks_used INTEGER NOT NULL,
    kv_blocks_cached INTEGER NOT NULL,
    kv_blocks_total INTEGER NOT NULL,
    preempts INTEGER NOT NULL,                -- so far
    PRIMARY KEY (run_id, summary_index, t_ns)
) STRICT, WITHOUT ROWID;

-- Prediction against the real run of the same requests, by metric.
CREATE TABLE validations (
    run_id INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    metric TEXT NOT NULL CHECK (metric <> ''), -- "ttft_s.p95"
    unit TEXT NOT NULL,
    predicted REAL NOT NULL,
    measured REAL NOT NULL,
    noise REAL,                               -- relative, run to run; NULL unknown
    PRIMARY KEY (run_id, metric)
) STRICT, WITHOUT ROWID;
