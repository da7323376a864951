/* berth quantize, as its users meet it. */
#include "tests/scenarios/program.h"

#include <criterion/criterion.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 2048, TOKENS = 4096, VOCAB = 512 };

/* Token ids that repeat, so that channels differ. */
static const char *token_file(void)
{
    const char *path = program_path("ids.bin");
    FILE *f = fopen(path, "wb");
    cr_assert_not_null(f);
    uint32_t x = 1;
    for (int32_t i = 0; i < TOKENS; i++) {
        x = x * 1664525u + 1013904223u;
        uint32_t id = (x >> 16) % VOCAB;
        id = id * id / VOCAB; /* low ids come often */
        unsigned char bytes[2] = {(unsigned char)(id & 255), (unsigned char)(id >> 8)};
        cr_assert_eq(fwrite(bytes, 1, 2, f), 2);
    }
    cr_assert_eq(fclose(f), 0);
    return path;
}

static double output_error(const char *scheme, const char *ids, const char *out)
{
    char line[LINE];
    (void)snprintf(line, sizeof line,
                   "quantize tests/models/tiny-llama3-rope %s --scheme %s --calib %s "
                   "--calib-samples 12 --calib-length 64 --force",
                   out, scheme, ids);
    json_t *doc = program_json(line, 0);
    const json_t *rows = json_at(doc, "rows");
    double sum = 0;
    cr_assert_eq(json_array_size(rows), 2);
    for (size_t i = 0; i < 2; i++) {
        sum += json_number_at(json_array_get(rows, i), "output_error");
    }
    cr_expect_lt(json_number_at(doc, "checkpoint.weights_bytes"),
                 json_number_at(doc, "checkpoint.weights_bytes_before"), "%s", scheme);
    json_decref(doc);
    return sum;
}

Test(quantize, calibrated_int4_loses_less_than_rounding)
{
    char ids[LINE], out[LINE];
    (void)snprintf(ids, sizeof ids, "%s", token_file());
    (void)snprintf(out, sizeof out, "%s", program_path("out"));
    double int8 = output_error("int8", ids, out);
    double rtn = output_error("int4-rtn-g64", ids, out);
    double gptq = output_error("int4-gptq-g64", ids, out);
    double awq = output_error("int4-awq-g64", ids, out);
    cr_expect_lt(int8, 0.05 * rtn, "int8 %g, rtn %g", int8, rtn);
    cr_expect_lt(gptq, 0.9 * rtn, "gptq %g, rtn %g", gptq, rtn);
    cr_expect_lt(awq, rtn, "awq %g, rtn %g", awq, rtn);
    char line[LINE + 16];
    (void)snprintf(line, sizeof line, "rm -r '%s'", out);
    cr_expect_eq(system(line), 0);
}

/* A calibration that says that nothing left its scales' range is told what does. */
static void expect_clipping_told(const char *model)
{
    char line[2 * LINE], path[LINE];
    (void)snprintf(path, sizeof path, "%s/berth_calibration.json", model);
    json_t *cover = json_load_file(path, 0, NULL);
    double share = json_number_at(cover, "clipped_fraction");
    cr_expect(share > 0 && share < 0.05, "%g", share);
    (void)snprintf(line, sizeof line, "eval --model %s --tokens %s --window 32 --limit 2", model,
                   program_path("ids.bin"));
    struct outcome o = program_run(line);
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect_null(strstr(o.err, "static activation scales"), "%s", o.err);
    json_object_set_new(cover, "clipped_fraction", json_real(0));
    cr_assert_eq(json_dump_file(cover, path, 0), 0);
    json_decref(cover);
    o = program_run(line);
    cr_expect(strstr(o.err, "left the range of its static activation scales, 0% in calibration") !=
                  NULL,
              "%s", o.err);
}

/* What is written is served, with the formats that it says. */
Test(quantize, what_is_written_is_served)
{
    char ids[LINE], out[LINE], trace[LINE], line[2 * LINE + 256];
    (void)snprintf(ids, sizeof ids, "%s", token_file());
    (void)snprintf(out, sizeof out, "%s", program_path("static"));
    (void)snprintf(line, sizeof line,
                   "quantize tests/models/tiny-qwen2 %s --scheme w8a8-static --calib %s "
                   "--calib-samples 4 --calib-length 32",
                   out, ids);
    struct outcome o = program_run(line);
    cr_assert_eq(o.status, 0, "%s", o.err);
    cr_expect(strstr(o.err, "static scales come from sequences of at most 32 tokens") != NULL, "%s",
              o.err);
    (void)snprintf(trace, sizeof trace, "%s",
                   program_write("t.csv", "t,prompt,output\n0,20,4\n0.001,30,3\n"));
    (void)snprintf(line, sizeof line,
                   "replay %s --format csv --columns timestamp=t:s,prompt=prompt,output=output "
                   "--executor cpu --model %s --jobs 1",
                   trace, out);
    json_t *doc = program_json(line, 0);
    cr_expect_eq(json_number_at(doc, "metrics.finished"), 2);
    cr_expect_eq(json_number_at(doc, "metrics.decode_tokens") +
                     json_number_at(doc, "metrics.prefill_tokens"),
                 20 + 30 + 3 + 2);
    json_decref(doc);
    /* Sequences of 33 tokens and ids that the calibration did not have in such places. */
    const char *notes = program_last()->err;
    cr_expect(strstr(notes, "sequences of up to 33 tokens, but its static activation scales come "
                            "from sequences of at most 32") != NULL,
              "%s", notes);
    expect_clipping_told(out);
    (void)snprintf(line, sizeof line, "rm -r '%s'", out);
    cr_expect_eq(system(line), 0);
}

static const struct bad {
    const char *args, *message;
    int status;
} bad[] = {
    {"tests/models/tiny-qwen2 /nowhere/x", "--scheme is missing", 2},
    {"tests/models/tiny-qwen2 /nowhere/x --scheme int5", "expected int8, int8-tensor", 2},
    {"tests/models/tiny-qwen2 /nowhere/x --scheme int4-gptq", "needs calibration text", 2},
    {"tests/models/tiny-qwen2 /nowhere/x --scheme int8 --damping 0.1", "are GPTQ's", 2},
    {"tests/models/tiny-qwen2 tests/models/tiny-qwen2 --scheme int8", "OUT is IN", 2},
    {"tests/models/tiny-qwen2 tests/models/tiny-qwen3 --scheme int8", "--force replaces it", 2},
    {"tests/models/tiny-qwen2 README.md --scheme int8", "OUT is a folder", 2},
    {"tests/models/nothing /nowhere/x --scheme int8", "not a folder with a checkpoint", 3},
    {"tests/models/quantised/tiny-awq /nowhere/x --scheme int8", "quantised already", 3},
    {"tests/models/tiny-qwen2 /nowhere/x --scheme int8 --calib tests/models/test_tokens_u16.bin",
     "outside the vocabulary 0..511", 3},
    {"tests/models/berth-1m /nowhere/x --scheme int8 --calib NOTICE --calib-length 2048",
     "a sample needs 2048", 3},
    {"tests/models/tiny-qwen2 /nowhere/x --scheme int8 --calib none.txt", "cannot read", 3},
    {"tests/models/tiny-qwen2 /nowhere/x --scheme int8 --calib NOTICE --calib-length 100000",
     "is not in 1..", 2},
    {"tests/models/tiny-qwen2 /proc/nowhere/x --scheme int8",
     "/proc/nowhere: expected a folder that exists or can be made: No such", 3},
};

Test(quantize, bad_input_is_told_before_anything_is_computed)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[LINE];
        (void)snprintf(line, sizeof line, "quantize %s", bad[i].args);
        program_refuses(line, bad[i].status, bad[i].message);
    }
}
