#include "engine/core/suggest.h"

#include <criterion/criterion.h>

#include <string.h>

Test(suggest, distance_counts_single_edits)
{
    static const struct {
        const char *a, *b;
        int32_t distance;
    } cases[] = {
        {"", "", 0},
        {"a", "", 1},
        {"", "abc", 3},
        {"kv", "KV", 0},
        {"--gpu", "--gpu", 0},
        {"recompute", "recomptue", 1}, /* a swap of neighbours is one edit */
        {"ca", "abc", 3},              /* optimal string alignment: no edit inside a swapped pair */
        {"kitten", "sitting", 3},
        {"llama-2-13b", "llama2-13b", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_expect_eq(bt_edit_distance(cases[i].a, cases[i].b), cases[i].distance, "%s %s: %d",
                     cases[i].a, cases[i].b, bt_edit_distance(cases[i].a, cases[i].b));
        cr_expect_eq(bt_edit_distance(cases[i].b, cases[i].a), cases[i].distance);
    }
}

Test(suggest, long_names_are_cut_and_counted)
{
    char a[BT_SUGGEST_MAX_BYTES + 11], b[BT_SUGGEST_MAX_BYTES + 1];
    memset(a, 'x', sizeof a - 1);
    a[sizeof a - 1] = '\0';
    memset(b, 'x', sizeof b - 1);
    b[sizeof b - 1] = '\0';
    cr_expect_eq(bt_edit_distance(a, b), 10);
    cr_expect_eq(bt_edit_distance(b, b), 0);
    cr_expect_eq(bt_edit_distance(a, ""), BT_SUGGEST_MAX_BYTES + 10);
}

Test(suggest, nearest_name_or_none)
{
    static const char *const names[] = {
        "replay",   "report", "memory", NULL,       "max-batched-tokens",
        "max-seqs", "h200",   "int8",   "int4-g128"};
    static const struct {
        const char *given, *expected;
    } cases[] = {
        {"repaly", "replay"},    {"memroy", "memory"},
        {"MEMORY", "memory"},    {"max-batch", "max-batched-tokens"}, /* the start of a name */
        {"max-seq", "max-seqs"}, {"h100", "h200"},
        {"int4", "int4-g128"},   {"", NULL},
        {"zebra", NULL},         {"x", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *found = bt_suggest(cases[i].given, names, sizeof names / sizeof names[0]);
        if (cases[i].expected == NULL) {
            cr_expect_null(found, "%s: %s", cases[i].given, found);
        } else {
            cr_expect_not_null(found, "%s", cases[i].given);
            cr_expect_str_eq(found, cases[i].expected, "%s: %s", cases[i].given, found);
        }
    }
    cr_expect_null(bt_suggest("abc", NULL, 0));
}
