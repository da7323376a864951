/* berth eval --stress. */
#include "tests/scenarios/program.h"

#include <criterion/criterion.h>

#include <stdio.h>

enum { LINE = 512 };

/* Extreme and degenerate inputs give finite logits in every scheme. */
Test(eval, no_scheme_overflows_under_stress)
{
    static const char *const weights[] = {"default",
                                          "int8",
                                          "int8-tensor",
                                          "int4-g128",
                                          "int4-g64",
                                          "int4-g32",
                                          "int4-tensor",
                                          "int8 --also lm-head,embeddings,norms",
                                          "int4-g64 --also lm-head,embeddings,norms"};
    static const char *const rest[] = {"", "--activations bf16", "--kv int8",
                                       "--activations int8-dynamic --kv int8"};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        for (size_t j = 0; j < sizeof rest / sizeof *rest; j++) {
            char line[LINE];
            (void)snprintf(line, sizeof line,
                           "eval --model tests/models/tiny-qwen2 --stress --jobs 1 --weights %s %s",
                           weights[i], rest[j]);
            struct outcome o = program_run(line);
            if (o.status == 2) { /* weights that these activations do not go with */
                cr_expect(i == 0 && j == 3, "%s: %s", line, o.err);
                continue;
            }
            cr_expect_eq(o.status, 0, "%s: %s%s", line, o.out, o.err);
        }
    }
}
