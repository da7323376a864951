#include "cli/grid.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "engine/core/rng.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Every kind of value that results have. */
static json_t *sample(void)
{
    static const char text[] =
        "{\"command\": \"replay\", \"fits\": true, \"seed\": 20260101, \"rate\": 0.1,"
        " \"config\": {\"model\": \"llama-2-7b\", \"kv\": {\"dtype\": \"fp16\"}},"
        " \"metrics\": {"
        "  \"ttft_s\": {\"mean\": 0.0123, \"p50\": 0.01, \"p99\": 1.5},"
        "  \"e2e_s\": {\"mean\": 2.5, \"p50\": 130.0, \"p99\": null},"
        "  \"finished\": 19366, \"swap_bytes\": 26000000000, \"kv_waste_fraction\": 0.0456,"
        "  \"throughput_req_per_s\": 5.5354, \"acceptance_conditional\": [0.598, 0.6]},"
        " \"rows\": ["
        "  {\"name\": \"a, \\\"b\\\"\", \"value\": 1, \"cost_usd_per_h\": 1.25},"
        "  {\"name\": \"gr\\u00fc\\u00df\", \"value\": null, \"unit\": \"s\","
        "   \"windows\": [{\"t_s\": 1.0}]}],"
        " \"empty\": [], \"nothing\": {}}";
    json_t *doc = json_loads(text, 0, NULL);
    cr_assert_not_null(doc);
    return doc;
}

static char *render(const json_t *doc, enum bt_out_format format, const struct bt_out_view *view)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *f = open_memstream(&text, &n_bytes);
    cr_assert_not_null(f);
    cr_assert_eq(bt_out_write(f, doc, format, view, NULL), BT_OK);
    fclose(f);
    return text;
}

static void expect_form(enum bt_out_format format, const struct bt_out_view *view, const char *want)
{
    json_t *doc = sample();
    char *got = render(doc, format, view);
    cr_expect_str_eq(got, want, "got:\n%s", got);
    free(got);
    json_decref(doc);
}

Test(out, json_is_stable_and_complete)
{
    expect_form(BT_OUT_JSON, NULL,
                "{\n"
                "  \"command\": \"replay\",\n"
                "  \"fits\": true,\n"
                "  \"seed\": 20260101,\n"
                "  \"rate\": 0.1,\n"
                "  \"config\": {\n"
                "    \"model\": \"llama-2-7b\",\n"
                "    \"kv\": {\n"
                "      \"dtype\": \"fp16\"\n"
                "    }\n"
                "  },\n"
                "  \"metrics\": {\n"
                "    \"ttft_s\": {\n"
                "      \"mean\": 0.0123,\n"
                "      \"p50\": 0.01,\n"
                "      \"p99\": 1.5\n"
                "    },\n"
                "    \"e2e_s\": {\n"
                "      \"mean\": 2.5,\n"
                "      \"p50\": 130.0,\n"
                "      \"p99\": null\n"
                "    },\n"
                "    \"finished\": 19366,\n"
                "    \"swap_bytes\": 26000000000,\n"
                "    \"kv_waste_fraction\": 0.0456,\n"
                "    \"throughput_req_per_s\": 5.5354,\n"
                "    \"acceptance_conditional\": [0.598, 0.6]\n"
                "  },\n"
                "  \"rows\": [\n"
                "    {\n"
                "      \"name\": \"a, \\\"b\\\"\",\n"
                "      \"value\": 1,\n"
                "      \"cost_usd_per_h\": 1.25\n"
                "    },\n"
                "    {\n"
                "      \"name\": \"gr\xc3\xbc\xc3\x9f\",\n"
                "      \"value\": null,\n"
                "      \"unit\": \"s\",\n"
                "      \"windows\": [\n"
                "        {\n"
                "          \"t_s\": 1.0\n"
                "        }\n"
                "      ]\n"
                "    }\n"
                "  ],\n"
                "  \"empty\": [],\n"
                "  \"nothing\": {}\n"
                "}\n");
}

Test(out, json_reads_back_as_the_same_document)
{
    json_t *doc = sample();
    char *text = render(doc, BT_OUT_JSON, NULL);
    json_t *again = json_loads(text, 0, NULL);
    cr_expect(json_equal(doc, again));
    free(text);
    json_decref(again);
    json_decref(doc);
}

Test(out, csv_takes_the_first_list_of_objects)
{
    expect_form(BT_OUT_CSV, NULL,
                "name,value,cost_usd_per_h,unit,windows\n"
                "\"a, \"\"b\"\"\",1,1.25,,\n"
                "gr\xc3\xbc\xc3\x9f,,,s,\"[{\"\"t_s\"\":1.0}]\"\n");
}

Test(out, csv_of_a_document_without_rows_is_one_row_of_dotted_columns)
{
    struct bt_out_view view = {.csv_rows = "no.such.list"};
    expect_form(BT_OUT_CSV, &view,
                "command,fits,seed,rate,config.model,config.kv.dtype,metrics.ttft_s.mean,"
                "metrics.ttft_s.p50,metrics.ttft_s.p99,metrics.e2e_s.mean,metrics.e2e_s.p50,"
                "metrics.e2e_s.p99,metrics.finished,metrics.swap_bytes,metrics.kv_waste_fraction,"
                "metrics.throughput_req_per_s,metrics.acceptance_conditional.0,"
                "metrics.acceptance_conditional.1,rows,empty,nothing\n"
                "replay,true,20260101,0.1,llama-2-7b,fp16,0.0123,0.01,1.5,2.5,130.0,,19366,"
                "26000000000,0.0456,5.5354,0.598,0.6,\"[{\"\"name\"\":\"\"a, \\\"\"b\\\"\"\"\","
                "\"\"value\"\":1,\"\"cost_usd_per_h\"\":1.25},{\"\"name\"\":\"\"gr\xc3\xbc\xc3\x9f"
                "\"\",\"\"value\"\":null,\"\"unit\"\":\"\"s\"\",\"\"windows\"\":[{\"\"t_s\"\":1.0"
                "}]}]\",[],{}\n");
}

Test(out, table_without_a_view_shows_every_member)
{
    expect_form(BT_OUT_TABLE, NULL,
                "command  replay\n"
                "fits     yes\n"
                "seed     20260101\n"
                "rate     0.1\n"
                "\n"
                "config\n"
                "  model  llama-2-7b\n"
                "\n"
                "config.kv\n"
                "  dtype  fp16\n"
                "\n"
                "           mean      p50     p99\n"
                "ttft_s  12.3 ms  10.0 ms  1.50 s\n"
                "e2e_s    2.50 s  2.2 min       -\n"
                "\n"
                "metrics\n"
                "  finished                19,366\n"
                "  swap_bytes              26.0 GB\n"
                "  kv_waste_fraction       4.6%\n"
                "  throughput_req_per_s    5.535/s\n"
                "  acceptance_conditional  0.598, 0.6\n"
                "\n"
                "rows\n"
                "  name    value  cost_usd_per_h  unit\n"
                "  a, \"b\"      1           $1.25  -\n"
                "  gr\xc3\xbc\xc3\x9f        -               -  s\n"
                "\n"
                "empty  -\n");
}

Test(out, table_follows_its_view)
{
    static const struct bt_out_column fields[] = {
        {"config.kv.dtype", "KV", BT_UNIT_AUTO},
        {"metrics.ttft_s.p99", "TTFT P99", BT_UNIT_SECONDS},
        {"metrics.no_such", "absent", BT_UNIT_AUTO},
        {"seed", NULL, BT_UNIT_NONE},
    };
    static const struct bt_out_column columns[] = {{"name", "Name", BT_UNIT_AUTO},
                                                   {"cost_usd_per_h", "Cost", BT_UNIT_AUTO}};
    static const struct bt_out_part parts[] = {
        {.kind = BT_OUT_LINES, .path = "command"},
        {.kind = BT_OUT_FIELDS, .path = "", .title = "Result", .columns = fields, .n_columns = 4},
        {.kind = BT_OUT_ROWS, .path = "rows", .columns = columns, .n_columns = 2},
        {.kind = BT_OUT_ROWS, .path = "empty", .columns = columns, .n_columns = 2},
        {.kind = BT_OUT_ROWS, .path = "absent", .columns = columns, .n_columns = 2},
    };
    struct bt_out_view view = {.parts = parts, .n_parts = 5};
    expect_form(BT_OUT_TABLE, &view,
                "replay\n"
                "\n"
                "Result\n"
                "  KV        fp16\n"
                "  TTFT P99  1.50 s\n"
                "  seed      20,260,101\n"
                "\n"
                "Name     Cost\n"
                "a, \"b\"  $1.25\n"
                "gr\xc3\xbc\xc3\x9f        -\n");
}

Test(out, shortest_doubles_read_back_exactly)
{
    static const struct {
        double x;
        const char *text;
    } cases[] = {
        {0, "0.0"},
        {-0.0, "-0.0"},
        {1, "1.0"},
        {20, "20.0"},
        {0.1, "0.1"},
        {1e15, "1e+15"},
        {1234567, "1234567.0"},
        {123456.5, "123456.5"},
        {1e-7, "1e-07"},
        {1.0 / 3, "0.3333333333333333"},
        {5e-324, "5e-324"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {819200e9, "819200000000000.0"},
    };
    char buf[BT_OUT_NUMBER_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bt_out_shortest(buf, cases[i].x);
        cr_expect_str_eq(buf, cases[i].text, "%s", buf);
    }
    struct bt_rng rng;
    bt_rng_init(&rng, 1, "shortest", 0);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = bt_rng_u64(&rng);
        double x;
        memcpy(&x, &bits, sizeof x);
        if (isfinite(x)) {
            bt_out_shortest(buf, x);
            cr_assert_eq(strtod(buf, NULL), x, "%s", buf);
            json_t *parsed = json_loads(buf, JSON_DECODE_ANY, NULL);
            cr_assert(json_is_real(parsed), "%s", buf);
            json_decref(parsed);
        }
    }
}

Test(out, undefined_numbers_and_texts_are_null)
{
    cr_expect(json_is_null(bt_out_real(NAN)));
    cr_expect(json_is_null(bt_out_real(INFINITY)));
    cr_expect(json_is_null(bt_out_text(NULL)));
    cr_expect(json_is_null(bt_out_text("\xff")));
}

Test(out, units_are_readable)
{
    static const struct {
        double x;
        const char *name, *text;
    } cases[] = {
        {0, "ttft_s", "0 s"},
        {1.5, "ttft_s", "1.50 s"},
        {0.99951, "ttft_s", "1.00 s"},
        {0.0999, "ttft_s", "99.9 ms"},
        {0.000789, "x_s", "789 us"},
        {3.2e-8, "x_s", "32.0 ns"},
        {119, "x_s", "119 s"},
        {7200, "x_s", "2.0 h"},
        {259200, "x_s", "3.0 days"},
        {2.5e6, "x_ns", "2.50 ms"},
        {0, "x_bytes", "0 B"},
        {819200, "kv_bytes_per_token", "819.2 kB"},
        {999, "x_bytes", "999 B"},
        {999999, "x_bytes", "1.00 MB"},
        {26.0e9, "weights_bytes", "26.0 GB"},
        {4.02e12, "read_bytes_per_s", "4.02 TB/s"},
        {989e12, "gemm_flops_per_s", "989.0 TFLOP/s"},
        {0.4561, "gpu_busy_fraction", "45.6%"},
        {0.5, "flops_utilization", "50.0%"},
        {1234.5, "throughput_req_per_s", "1234/s"},
        {123456, "throughput_out_tok_per_s", "123,456/s"},
        {1.25, "cost_usd_per_h", "$1.25"},
        {-2, "cost_usd_per_h", "-$2.00"},
        {0.00345, "cost_usd_per_mtok", "$0.00345"},
        {12345.6, "cost_usd_per_h", "$12,346"},
        {19366, "finished", "19,366"},
        {-1234567, "drift", "-1,234,567"},
        {0.598, "acceptance_rate", "0.598"},
        {20260101, "seed", "20260101"},
        {NAN, "ttft_s", "-"},
    };
    char buf[BT_OUT_NUMBER_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bt_unit_format(buf, cases[i].x, bt_unit_by_suffix(cases[i].name));
        cr_expect_str_eq(buf, cases[i].text, "%s: got %s, want %s", cases[i].name, buf,
                         cases[i].text);
    }
}

Test(out, a_full_disk_is_an_error)
{
    FILE *f = fopen("/dev/full", "w");
    cr_assert_not_null(f);
    json_t *doc = sample();
    struct bt_error err = {0};
    cr_expect_eq(bt_out_write(f, doc, BT_OUT_JSON, NULL, &err), BT_ERR_MISSING);
    cr_expect_str_eq(err.msg, "the result cannot be written: No space left on device");
    json_decref(doc);
    fclose(f);
}

Test(out, paths_reach_into_objects_and_lists)
{
    json_t *doc = sample();
    cr_expect_eq(json_integer_value(bt_out_at(doc, "rows.0.value")), 1);
    cr_expect_eq(bt_out_at(doc, ""), doc);
    cr_expect_null(bt_out_at(doc, "rows.2.value"));
    cr_expect_null(bt_out_at(doc, "rows.x"));
    cr_expect_null(bt_out_at(doc, "seed.x"));
    json_decref(doc);
}

Test(out, widths_are_those_of_a_terminal)
{
    cr_expect_eq(bt_text_width("gr\xc3\xbc\xc3\x9f"), 4);
    cr_expect_eq(bt_text_width("\xe6\x97\xa5\xe6\x9c\xac"), 4);
    cr_expect_eq(bt_text_width("a\xff"), 2);
}

Test(out, names_cannot_break_a_table)
{
    json_t *doc = json_pack("{s:[{s:s,s:i}]}", "rows", "name", "a\nb\x1b[2J", "n", 1);
    char *text = render(doc, BT_OUT_TABLE, NULL);
    cr_expect_str_eq(text, "rows\n  name     n\n  a b [2J  1\n", "%s", text);
    free(text);
    json_decref(doc);
}

Test(progress, line_shows_share_rate_and_time_left)
{
    struct bt_progress p = {.label = "replay", .noun = "requests"};
    char line[BT_PROGRESS_LINE_BYTES];
    bt_progress_line(line, &p, 5000, 20000, 2);
    cr_expect_str_eq(line, "replay [######..................]  25%  2,500/s requests  6.00 s left");
    bt_progress_line(line, &p, 0, 20000, 2);
    cr_expect_str_eq(line, "replay [........................]   0%");
    bt_progress_line(line, &p, 30000, 20000, 0.1);
    cr_expect_str_eq(line, "replay [########################] 100%");
    p.noun = NULL;
    bt_progress_line(line, &p, 0.5, 1, 130);
    cr_expect_str_eq(line, "replay [############............]  50%  2.2 min left");
}
