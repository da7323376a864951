/* What real engines reported of their memory, row by row, beside what the accounting predicts from
 * what each row states. */
#ifndef BT_TESTS_CASES_MEMORY_CASES_H
#define BT_TESTS_CASES_MEMORY_CASES_H

#include "db/catalog.h"
#include "db/csv.h"
#include "sim/hardware/memory.h"

#include <stdio.h>

enum case_basis {
    CASE_NOTHING,  /* neither model nor KV bytes a token, or no stack that is modelled */
    CASE_POOL,     /* the reported KV GiB over the KV bytes of a token */
    CASE_FULL,     /* from card, utilisation, length, model and version */
    CASE_COMPLETE, /* the same, and the row states all that it takes */
};

enum { CASE_TEXT_BYTES = 256, CASE_STACK_BYTES = 32 };

struct memory_case {
    char id[16];
    char stack[CASE_STACK_BYTES]; /* "" none */
    char model[BT_ARCH_NAME_BYTES];
    enum case_basis basis;
    bool refused; /* the engine started with no room: 0 tokens */
    bool predicted_refused;
    double weights_gib; /* predicted, for rows that state them too; 0: no model */
    double weights_stated_gib;
    double cpu_blocks_stated; /* blocks of swap space; 0: not stated */
    double cpu_blocks;        /* with the stack's default swap space; 0: no model */
    double tokens_stated;     /* 0: not stated */
    double tokens;            /* predicted */
    double error;             /* predicted / stated - 1; NAN */
    char assumed[CASE_TEXT_BYTES];
    char reason[CASE_TEXT_BYTES]; /* of a miss over 10%, or of no prediction */
};

struct memory_cases {
    struct memory_case *rows; /* owned */
    int32_t n;
};

/* Predicts every row of a file of the form of tests/data/cases/memory_cases.csv. */
BT_NODISCARD enum bt_code memory_cases_read(const char *path, const struct bt_catalog *catalog,
                                            struct memory_cases *out, struct bt_error *err);
void memory_cases_free(struct memory_cases *c);

/* Median and largest absolute error of the rows of a basis; NAN when there are none. */
double memory_cases_median(const struct memory_cases *c, enum case_basis basis);
const struct memory_case *memory_cases_worst(const struct memory_cases *c, enum case_basis basis);

/* The page docs/MEMORY_CASES.md. */
void memory_cases_print(const struct memory_cases *c, FILE *f);

#endif
