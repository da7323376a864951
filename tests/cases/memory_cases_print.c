#include "tests/cases/memory_cases.h"

#include <math.h>
#include <stdio.h>

static const char *basis_title(enum case_basis basis)
{
    switch (basis) {
    case CASE_COMPLETE:
        return "Complete rows: card, utilisation, length, weights and tokens are stated";
    case CASE_FULL:
        return "The whole accounting, with what is not stated assumed";
    case CASE_POOL:
        return "KV memory as stated, divided into tokens";
    case CASE_NOTHING:
        break;
    }
    return "No prediction";
}

static void print_rows(const struct memory_cases *c, enum case_basis basis, FILE *f)
{
    (void)fprintf(f, "\n## %s\n\n", basis_title(basis));
    (void)fputs("| row | stack | model | tokens reported | predicted | error | assumed | remark |\n"
                "| --- | --- | --- | ---: | ---: | ---: | --- | --- |\n",
                f);
    for (int32_t i = 0; i < c->n; i++) {
        const struct memory_case *row = &c->rows[i];
        if (row->basis != basis) {
            continue;
        }
        (void)fprintf(f, "| %s | %s | %s | ", row->id, row->stack[0] != '\0' ? row->stack : "-",
                      row->model[0] != '\0' ? row->model : "-");
        if (row->tokens_stated > 0) {
            (void)fprintf(f, "%.0f | ", row->tokens_stated);
        } else {
            (void)fprintf(f, "%s | ", row->refused ? "refused" : "-");
        }
        if (row->predicted_refused) {
            (void)fputs("refused | ", f);
        } else {
            (void)fprintf(f, "%.0f | ", row->tokens);
        }
        if (isnan(row->error)) {
            (void)fputs("- | ", f);
        } else {
            (void)fprintf(f, "%+.1f%% | ", 100 * row->error);
        }
        (void)fprintf(f, "%s | %s |\n", row->assumed, row->reason);
    }
    double median = memory_cases_median(c, basis);
    const struct memory_case *worst = memory_cases_worst(c, basis);
    if (worst != NULL) {
        (void)fprintf(f, "\nMedian absolute error %.1f%%; the worst is %s with %+.1f%%%s%s.\n",
                      100 * median, worst->id, 100 * worst->error,
                      worst->reason[0] != '\0' ? ": " : "", worst->reason);
    }
}

static void print_unpredicted(const struct memory_cases *c, FILE *f)
{
    (void)fprintf(f, "\n## %s\n\n| row | why |\n| --- | --- |\n", basis_title(CASE_NOTHING));
    for (int32_t i = 0; i < c->n; i++) {
        if (c->rows[i].basis == CASE_NOTHING) {
            (void)fprintf(f, "| %s | %s |\n", c->rows[i].id, c->rows[i].reason);
        }
    }
}

static void print_weights(const struct memory_cases *c, FILE *f)
{
    (void)fputs("\n## Weights\n\nWeights as engines reported them beside those derived from the "
                "architecture: published parameters, the table of rotary angles, the allocator's "
                "rests.\n\n| row | model | GiB reported | derived | error |\n"
                "| --- | --- | ---: | ---: | ---: |\n",
                f);
    for (int32_t i = 0; i < c->n; i++) {
        const struct memory_case *row = &c->rows[i];
        if (row->weights_gib > 0 && row->weights_stated_gib > 0) {
            (void)fprintf(f, "| %s | %s | %.4g | %.4g | %+.1f%% |\n", row->id, row->model,
                          row->weights_stated_gib, row->weights_gib,
                          100 * (row->weights_gib / row->weights_stated_gib - 1));
        }
    }
}

static void print_swap(const struct memory_cases *c, FILE *f)
{
    (void)fputs("\n## Blocks of swap space\n\nBlocks of host memory as V0 engines printed them "
                "beside those of the default swap space of 4 GiB: a check of the bytes of a "
                "block. A multiple is a larger swap space.\n\n"
                "| row | model | reported | with 4 GiB |\n| --- | --- | ---: | ---: |\n",
                f);
    for (int32_t i = 0; i < c->n; i++) {
        const struct memory_case *row = &c->rows[i];
        if (row->cpu_blocks > 0 && row->cpu_blocks_stated > 0) {
            (void)fprintf(f, "| %s | %s | %.0f | %.0f |\n", row->id, row->model,
                          row->cpu_blocks_stated, row->cpu_blocks);
        }
    }
}

void memory_cases_print(const struct memory_cases *c, FILE *f)
{
    (void)fputs(
        "# Memory: what engines report and what is predicted\n\n"
        "Made by `memory_cases tests/data/cases/memory_cases.csv`; do not edit. Each row is what "
        "an engine printed about its KV pool, with its source in that file. A row is predicted "
        "from what it states alone: the version picks the family of the accounting "
        "(docs/STACKS.md), what is not stated is the stack's default on that card and named under "
        "\"assumed\". No figure was fitted to a row; one, what a GeForce card keeps for displays, "
        "was chosen with M033 in view (docs/STACKS.md).\n",
        f);
    print_rows(c, CASE_COMPLETE, f);
    print_rows(c, CASE_FULL, f);
    print_rows(c, CASE_POOL, f);
    print_unpredicted(c, f);
    print_weights(c, f);
    print_swap(c, f);
}
