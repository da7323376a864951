/* Every statement of the store, prepared once. Parameters are bound by name. Internal to
 * db/store*.c.
 */
#ifndef BT_DB_STORE_SQL_H
#define BT_DB_STORE_SQL_H

#define BT_STORE_STATEMENTS(X)                                                                     \
    X(BEGIN, "BEGIN IMMEDIATE")                                                                    \
    X(COMMIT, "COMMIT")                                                                            \
    X(ROLLBACK, "ROLLBACK")                                                                        \
    X(GET_META, "SELECT value FROM meta WHERE key = :key")                                         \
    X(PUT_META, "INSERT INTO meta (key, value) VALUES (:key, :value) "                             \
                "ON CONFLICT (key) DO UPDATE SET value = excluded.value")                          \
    X(ADD_PROVENANCE,                                                                              \
      "INSERT INTO provenance (kind, source, source_date, licence, content_sha256) "               \
      "VALUES (:kind, :source, :source_date, :licence, :content_sha256)")                          \
    X(PUT_GPU,                                                                                     \
      "INSERT INTO gpus (name, product, family, cc, memory_bytes, usable_bytes, "                  \
      "usable_estimated, mem_bytes_per_s, fp32_flops_per_s, fp16_flops_per_s, int8_ops_per_s, "    \
      "fp8_flops_per_s, int4_ops_per_s, pcie_gen, pcie_bytes_per_s, nvlink_bytes_per_s, tdp_w, "   \
      "source, source_date, notes, provenance_id) VALUES (:name, :product, :family, :cc, "         \
      ":memory_bytes, :usable_bytes, :usable_estimated, :mem_bytes_per_s, :fp32_flops_per_s, "     \
      ":fp16_flops_per_s, :int8_ops_per_s, :fp8_flops_per_s, :int4_ops_per_s, :pcie_gen, "         \
      ":pcie_bytes_per_s, :nvlink_bytes_per_s, :tdp_w, :source, :source_date, :notes, "            \
      ":provenance_id) ON CONFLICT (name) DO UPDATE SET product = excluded.product, "              \
      "family = excluded.family, cc = excluded.cc, memory_bytes = excluded.memory_bytes, "         \
      "usable_bytes = excluded.usable_bytes, usable_estimated = excluded.usable_estimated, "       \
      "mem_bytes_per_s = excluded.mem_bytes_per_s, "                                               \
      "fp32_flops_per_s = excluded.fp32_flops_per_s, "                                             \
      "fp16_flops_per_s = excluded.fp16_flops_per_s, int8_ops_per_s = excluded.int8_ops_per_s, "   \
      "fp8_flops_per_s = excluded.fp8_flops_per_s, int4_ops_per_s = excluded.int4_ops_per_s, "     \
      "pcie_gen = excluded.pcie_gen, pcie_bytes_per_s = excluded.pcie_bytes_per_s, "               \
      "nvlink_bytes_per_s = excluded.nvlink_bytes_per_s, tdp_w = excluded.tdp_w, "                 \
      "source = excluded.source, source_date = excluded.source_date, notes = excluded.notes, "     \
      "provenance_id = excluded.provenance_id "                                                    \
      "WHERE :own OR (SELECT kind FROM provenance p "                                              \
      "WHERE p.provenance_id = gpus.provenance_id) = 'shipped'")                                   \
    X(LOAD_GPUS,                                                                                   \
      "SELECT name, product, family, cc, memory_bytes, usable_bytes, usable_estimated, "           \
      "mem_bytes_per_s, fp32_flops_per_s, fp16_flops_per_s, int8_ops_per_s, fp8_flops_per_s, "     \
      "int4_ops_per_s, pcie_gen, pcie_bytes_per_s, nvlink_bytes_per_s, tdp_w "                     \
      "FROM gpus JOIN provenance USING (provenance_id) WHERE kind <> 'shipped' ORDER BY name")     \
    X(DROP_SHIPPED_PRICES, "DELETE FROM prices WHERE provenance_id IN "                            \
                           "(SELECT provenance_id FROM provenance WHERE kind = 'shipped')")        \
    X(DROP_SHIPPED_MODELS, "DELETE FROM models WHERE provenance_id IN "                            \
                           "(SELECT provenance_id FROM provenance WHERE kind = 'shipped')")        \
    X(DROP_OLD_GPUS, "DELETE FROM gpus WHERE provenance_id <> :provenance_id AND "                 \
                     "provenance_id IN (SELECT provenance_id FROM provenance "                     \
                     "WHERE kind = 'shipped') AND name NOT IN (SELECT gpu FROM prices)")           \
    X(PUT_PRICE, "INSERT OR IGNORE INTO prices (gpu, provider, term, usd_per_h, source_date, "     \
                 "offer, provenance_id) VALUES (:gpu, :provider, :term, :usd_per_h, "              \
                 ":source_date, :offer, :provenance_id)")                                          \
    X(PUT_MODEL,                                                                                   \
      "INSERT OR IGNORE INTO models (name, hf_id, vocab_family, params, hidden, n_layers, "        \
      "n_heads, n_kv_heads, head_dim, intermediate, vocab, max_position, checkpoint, source, "     \
      "source_date, notes, provenance_id) VALUES (:name, :hf_id, :vocab_family, :params, "         \
      ":hidden, :n_layers, :n_heads, :n_kv_heads, :head_dim, :intermediate, :vocab, "              \
      ":max_position, :checkpoint, :source, :source_date, :notes, :provenance_id)")                \
    X(DROP_CALIBRATION, "DELETE FROM calibrations WHERE name = :name")                             \
    X(ADD_CALIBRATION,                                                                             \
      "INSERT INTO calibrations (name, gpu, stack, stack_version, engine_sha256, trust, driver, "  \
      "sm_clock_mhz, mem_clock_mhz, power_limit_w, started_utc, notes, provenance_id) VALUES ("    \
      ":name, :gpu, :stack, :stack_version, :engine_sha256, :trust, :driver, :sm_clock_mhz, "      \
      ":mem_clock_mhz, :power_limit_w, :started_utc, :notes, :provenance_id)")                     \
    X(ADD_OP_SAMPLE,                                                                               \
      "INSERT INTO operation_samples (calibration_id, op, weights, activations, kv, m_tokens, "    \
      "n_out, k_in, n_seqs, context_tokens, n_heads, n_kv_heads, head_dim, block_tokens, tp, "     \
      "median_ns, spread_ns, n_repeats, bytes, flops) VALUES (:calibration_id, :op, :weights, "    \
      ":activations, :kv, :m_tokens, :n_out, :k_in, :n_seqs, :context_tokens, :n_heads, "          \
      ":n_kv_heads, :head_dim, :block_tokens, :tp, :median_ns, :spread_ns, :n_repeats, :bytes, "   \
      ":flops)")                                                                                   \
    X(ADD_PCIE_SAMPLE, "INSERT INTO pcie_samples (calibration_id, direction, copy_bytes, "         \
                       "bytes_per_s, spread_bytes_per_s) VALUES (:calibration_id, :direction, "    \
                       ":copy_bytes, :bytes_per_s, :spread_bytes_per_s)")                          \
    X(LOAD_CALIBRATIONS,                                                                           \
      "SELECT calibration_id, name, gpu, stack, stack_version, engine_sha256, driver, "            \
      "started_utc, source, trust FROM calibrations JOIN provenance USING (provenance_id) "        \
      "WHERE (:gpu = '' OR gpu = :gpu) AND (:stack = '' OR stack = :stack) "                       \
      "ORDER BY started_utc, calibration_id")                                                      \
    X(COUNT_CALIBRATIONS, "SELECT count(*) FROM calibrations WHERE (:gpu = '' OR gpu = :gpu) "     \
                          "AND (:stack = '' OR stack = :stack)")                                   \
    X(LOAD_OP_SAMPLES,                                                                             \
      "SELECT op, weights, activations, kv, m_tokens, n_out, k_in, n_seqs, context_tokens, "       \
      "n_heads, n_kv_heads, head_dim, block_tokens, tp, median_ns, spread_ns, n_repeats, bytes, "  \
      "flops FROM operation_samples WHERE calibration_id = :calibration_id "                       \
      "ORDER BY op, weights, activations, kv, m_tokens, n_out, k_in, n_seqs, context_tokens, "     \
      "n_heads, n_kv_heads, head_dim, block_tokens, tp")                                           \
    X(COUNT_OP_SAMPLES,                                                                            \
      "SELECT count(*) FROM operation_samples WHERE calibration_id = :calibration_id")             \
    X(LOAD_PCIE_SAMPLES,                                                                           \
      "SELECT direction, copy_bytes, bytes_per_s, spread_bytes_per_s FROM pcie_samples "           \
      "WHERE calibration_id = :calibration_id ORDER BY direction, copy_bytes")                     \
    X(COUNT_PCIE_SAMPLES,                                                                          \
      "SELECT count(*) FROM pcie_samples WHERE calibration_id = :calibration_id")                  \
    X(ADD_ACCEPTANCE,                                                                              \
      "INSERT INTO acceptance_samples (target, draft, temperature, text_kind, position, "          \
      "n_proposed, n_accepted, provenance_id) VALUES (:target, :draft, :temperature, :text_kind, " \
      ":position, :n_proposed, :n_accepted, :provenance_id)")                                      \
    X(LOAD_ACCEPTANCE,                                                                             \
      "SELECT target, draft, temperature, text_kind, position, sum(n_proposed), sum(n_accepted) "  \
      "FROM acceptance_samples GROUP BY target, draft, temperature, text_kind, position "          \
      "ORDER BY target, draft, temperature, text_kind, position")                                  \
    X(COUNT_ACCEPTANCE, "SELECT count(*) FROM acceptance_samples")                                 \
    X(ADD_ACCURACY,                                                                                \
      "INSERT INTO accuracy (model, weights, activations, kv, method, metric, unit, baseline, "    \
      "value, ci95, kind, provenance_id) VALUES (:model, :weights, :activations, :kv, :method, "   \
      ":metric, :unit, :baseline, :value, :ci95, :kind, :provenance_id)")                          \
    X(LOAD_ACCURACY,                                                                               \
      "SELECT weights, activations, kv, method, metric, unit, baseline, value, ci95, "             \
      "accuracy.kind, source, source_date FROM accuracy JOIN provenance USING (provenance_id) "    \
      "WHERE model = :model ORDER BY accuracy_id")                                                 \
    X(COUNT_ACCURACY, "SELECT count(*) FROM accuracy WHERE model = :model")                        \
    X(FIND_IMPORT, "SELECT text = :text AND source = :source AND licence = :licence "              \
                   "FROM imports JOIN provenance USING (provenance_id) WHERE name = :name")        \
    X(DROP_IMPORT, "DELETE FROM imports WHERE name = :name")                                       \
    X(ADD_IMPORT,                                                                                  \
      "INSERT INTO imports (name, format, gpu, stack, stack_version, op, model, samples, "         \
      "error_median, error_p90, text, provenance_id) VALUES (:name, :format, :gpu, :stack, "       \
      ":stack_version, :op, :model, :samples, :error_median, :error_p90, :text, :provenance_id)")  \
    X(COUNT_IMPORTS, "SELECT count(*) FROM imports WHERE (op = 'skew') = :skews")                  \
    X(LOAD_IMPORTS, "SELECT name, text FROM imports WHERE (op = 'skew') = :skews ORDER BY name")   \
    X(PUT_FIT,                                                                                     \
      "INSERT INTO fits (name, stack, gpu, model, step_overhead_s, efficiency, step_error, "       \
      "requests, provenance_id) VALUES (:name, :stack, :gpu, :model, :step_overhead_s, "           \
      ":efficiency, :step_error, :requests, :provenance_id) ON CONFLICT (name) DO UPDATE SET "     \
      "stack = excluded.stack, gpu = excluded.gpu, model = excluded.model, "                       \
      "step_overhead_s = excluded.step_overhead_s, efficiency = excluded.efficiency, "             \
      "step_error = excluded.step_error, requests = excluded.requests, "                           \
      "provenance_id = excluded.provenance_id")                                                    \
    X(DROP_BENCHMARK, "DELETE FROM benchmarks WHERE name = :name")                                 \
    X(ADD_BENCHMARK, "INSERT INTO benchmarks (name, format, model, gpu, stack, provenance_id) "    \
                     "VALUES (:name, :format, :model, :gpu, :stack, :provenance_id)")              \
    X(ADD_FIGURE, "INSERT INTO benchmark_figures (benchmark_id, test, metric, unit, value) "       \
                  "VALUES (:benchmark_id, :test, :metric, :unit, :value)")                         \
    X(LIST_FITS,                                                                                   \
      "SELECT name, stack, gpu, model, step_overhead_s, efficiency, step_error, requests, "        \
      "source, content_sha256, created_utc FROM fits JOIN provenance USING (provenance_id) "       \
      "WHERE :name = '' OR name = :name ORDER BY name")                                            \
    X(LIST_IMPORTS,                                                                                \
      "SELECT name, format, gpu, stack, stack_version, op, model, samples, error_median, "         \
      "error_p90, source, licence, content_sha256, created_utc FROM imports JOIN provenance "      \
      "USING (provenance_id) "                                                                     \
      "WHERE :name = '' OR name = :name ORDER BY name")                                            \
    X(LIST_BENCHMARKS,                                                                             \
      "SELECT name, format, model, gpu, stack, (SELECT count(*) FROM benchmark_figures f WHERE "   \
      "f.benchmark_id = b.benchmark_id) AS figures, source, licence, content_sha256, created_utc " \
      "FROM benchmarks b JOIN provenance USING (provenance_id) "                                   \
      "WHERE :name = '' OR name = :name ORDER BY name")                                            \
    X(LIST_FIGURES, "SELECT test, metric, unit, value FROM benchmark_figures "                     \
                    "JOIN benchmarks USING (benchmark_id) WHERE name = :name "                     \
                    "ORDER BY test, metric")                                                       \
    X(ADD_RUN,                                                                                     \
      "INSERT INTO runs (command, name, status, version, commit_id, commit_dirty, build_type, "    \
      "scenario_text, scenario_sha256, trace_name, trace_sha256, seed, executor, stack, device, "  \
      "driver) VALUES (:command, :name, 'running', :version, :commit_id, :commit_dirty, "          \
      ":build_type, :scenario_text, :scenario_sha256, :trace_name, :trace_sha256, :seed, "         \
      ":executor, :stack, :device, :driver)")                                                      \
    X(END_RUN, "UPDATE runs SET status = :status, "                                                \
               "ended_utc = strftime('%Y-%m-%dT%H:%M:%SZ', 'now') WHERE run_id = :run_id")         \
    X(COUNT_REQUESTS, "UPDATE runs SET requests_total = :total, requests_kept = :kept "            \
                      "WHERE run_id = :run_id")                                                    \
    X(DELETE_RUN, "DELETE FROM runs WHERE run_id = :run_id")                                       \
    X(ADD_SUMMARY,                                                                                 \
      "INSERT INTO summaries (run_id, summary_index, label, model, gpu, trust, config_json, "      \
      "metrics_json, arrived, finished, throughput_req_per_s, throughput_out_tok_per_s, "          \
      "slo_attainment_fraction, ttft_s_p95, ttft_s_p99, tpot_s_mean, e2e_s_p95, e2e_s_p99, "       \
      "gpu_busy_fraction, cost_usd_per_h, bottleneck) VALUES (:run_id, :summary_index, :label, "   \
      ":model, :gpu, :trust, json(:config_json), json(:metrics_json), :arrived, :finished, "       \
      ":throughput_req_per_s, :throughput_out_tok_per_s, :slo_attainment_fraction, :ttft_s_p95, "  \
      ":ttft_s_p99, :tpot_s_mean, :e2e_s_p95, :e2e_s_p99, :gpu_busy_fraction, :cost_usd_per_h, "   \
      ":bottleneck)")                                                                              \
    X(ADD_REQUEST,                                                                                 \
      "INSERT INTO requests (run_id, summary_index, request_index, user_id, arrival_ns, "          \
      "scheduled_ns, first_token_ns, last_token_ns, end_ns, n_prompt, n_output, n_cached, "        \
      "n_preempt_swap, n_preempt_recompute, priority, replica, outcome, reject, degraded) "        \
      "VALUES (:run_id, :summary_index, :request_index, :user_id, :arrival_ns, :scheduled_ns, "    \
      ":first_token_ns, :last_token_ns, :end_ns, :n_prompt, :n_output, :n_cached, "                \
      ":n_preempt_swap, :n_preempt_recompute, :priority, :replica, :outcome, :reject, :degraded)") \
    X(ADD_SAMPLE,                                                                                  \
      "INSERT INTO timeseries (run_id, summary_index, t_ns, running, waiting, swapped, "           \
      "kv_blocks_used, kv_blocks_cached, kv_blocks_total, preempts) VALUES (:run_id, "             \
      ":summary_index, :t_ns, :running, :waiting, :swapped, :kv_blocks_used, "                     \
      ":kv_blocks_cached, :kv_blocks_total, :preempts)")                                           \
    X(ADD_PLAN, "INSERT INTO plans (run_id, question_json, n_candidates, n_feasible, best_rank) "  \
                "VALUES (:run_id, json(:question_json), :n_candidates, :n_feasible, :best_rank)")  \
    X(ADD_CANDIDATE,                                                                               \
      "INSERT INTO plan_candidates (run_id, rank, verdict, reason, model, gpu, replicas, cards, "  \
      "cost_usd_per_h, capacity_req_per_s, trust, config_json, metrics_json) VALUES (:run_id, "    \
      ":rank, :verdict, :reason, :model, :gpu, :replicas, :cards, :cost_usd_per_h, "               \
      ":capacity_req_per_s, :trust, json(:config_json), json(:metrics_json))")                     \
    X(ADD_VALIDATION,                                                                              \
      "INSERT INTO validations (run_id, metric, unit, predicted, measured, noise) "                \
      "VALUES (:run_id, :metric, :unit, :predicted, :measured, :noise)")                           \
    X(FIND_RUN, "SELECT 1 FROM runs WHERE run_id = :run_id")                                       \
    X(NEWEST_RUN, "SELECT max(run_id) FROM runs")                                                  \
    X(LIST_RUNS,                                                                                   \
      "SELECT run_id, command, name, status, started_utc, stack, executor, "                       \
      "(SELECT model FROM summaries s WHERE s.run_id = r.run_id AND summary_index = 0) AS model, " \
      "(SELECT gpu FROM summaries s WHERE s.run_id = r.run_id AND summary_index = 0) AS gpu, "     \
      "commit_id FROM runs r WHERE (:command = '' OR command = :command) "                         \
      "ORDER BY run_id DESC LIMIT CASE WHEN :limit > 0 THEN :limit ELSE -1 END")                   \
    X(DIFF_CONFIG, BT_STORE_DIFF_SQL("config_json"))                                               \
    X(DIFF_METRICS, BT_STORE_DIFF_SQL("metrics_json"))                                             \
    X(CHECK_SCENARIOS,                                                                             \
      "SELECT run_id, scenario_text, scenario_sha256 FROM runs WHERE scenario_text <> ''")         \
    X(CHECK_CUT_OFF, "SELECT run_id, command, started_utc FROM runs WHERE status = 'running'")     \
    X(CHECK_COUNTS, "SELECT run_id, requests_kept, (SELECT count(*) FROM requests q WHERE "        \
                    "q.run_id = r.run_id) AS n FROM runs r WHERE requests_kept <> n")              \
    X(CHECK_PLANS, "SELECT run_id, n_candidates, (SELECT count(*) FROM plan_candidates c WHERE "   \
                   "c.run_id = p.run_id) AS n FROM plans p WHERE n_candidates <> n")               \
    X(CHECK_JSON, "SELECT run_id FROM summaries WHERE NOT (json_valid(config_json) AND "           \
                  "json_valid(metrics_json)) UNION SELECT run_id FROM plan_candidates WHERE NOT "  \
                  "(json_valid(config_json) AND json_valid(coalesce(metrics_json, 'null'))) "      \
                  "UNION SELECT run_id FROM plans WHERE NOT json_valid(question_json)")

/* Leaves of a JSON column of two runs that differ, by summary and path. */
#define BT_STORE_DIFF_SQL(column)                                                                  \
    "WITH a AS (SELECT summary_index AS i, t.fullkey AS k, t.atom AS v FROM summaries, "           \
    "json_tree(" column ") t WHERE run_id = :a AND t.atom IS NOT NULL), "                          \
    "b AS (SELECT summary_index AS i, t.fullkey AS k, t.atom AS v FROM summaries, "                \
    "json_tree(" column ") t WHERE run_id = :b AND t.atom IS NOT NULL), "                          \
    "u AS (SELECT i, k FROM a UNION SELECT i, k FROM b) "                                          \
    "SELECT u.i AS summary_index, replace(substr(u.k, 3), '\"', '') AS path, a.v AS a, b.v AS b, " \
    "CASE WHEN typeof(a.v) IN ('integer', 'real') AND typeof(b.v) IN ('integer', 'real') "         \
    "THEN b.v - a.v END AS difference, "                                                           \
    "CASE WHEN typeof(a.v) IN ('integer', 'real') AND typeof(b.v) IN ('integer', 'real') "         \
    "AND a.v <> 0 THEN 1.0 * b.v / a.v END AS ratio "                                              \
    "FROM u LEFT JOIN a USING (i, k) LEFT JOIN b USING (i, k) "                                    \
    "WHERE a.v IS NOT b.v ORDER BY u.i, u.k"

/* Tables that can be read whole: name, whether they belong to a run, and their order. */
#define BT_STORE_TABLES(X)                                                                         \
    X(runs, true, "run_id")                                                                        \
    X(summaries, true, "run_id, summary_index")                                                    \
    X(requests, true, "run_id, summary_index, request_index")                                      \
    X(timeseries, true, "run_id, summary_index, t_ns")                                             \
    X(plans, true, "run_id")                                                                       \
    X(plan_candidates, true, "run_id, rank")                                                       \
    X(validations, true, "run_id, metric")                                                         \
    X(gpus, false, "name")                                                                         \
    X(models, false, "name")                                                                       \
    X(prices, false, "gpu, provider, term")                                                        \
    X(calibrations, false, "calibration_id")                                                       \
    X(operation_samples, false,                                                                    \
      "calibration_id, op, weights, activations, kv, m_tokens, n_out, k_in, n_seqs, "              \
      "context_tokens, n_heads, n_kv_heads, head_dim, block_tokens, tp")                           \
    X(pcie_samples, false, "calibration_id, direction, copy_bytes")                                \
    X(acceptance_samples, false, "target, draft, temperature, text_kind, position, provenance_id") \
    X(imports, false, "name")                                                                      \
    X(fits, false, "name")                                                                         \
    X(benchmarks, false, "name")                                                                   \
    X(benchmark_figures, false, "benchmark_id, test, metric")                                      \
    X(accuracy, false, "accuracy_id")                                                              \
    X(provenance, false, "provenance_id")

enum bt_statement {
#define X(id, sql) BT_STMT_##id,
    BT_STORE_STATEMENTS(X)
#undef X
        BT_STATEMENTS,
};

#endif
