#include "engine/score.h"

#include <criterion/criterion.h>

#include <math.h>

enum { VOCAB = 5 };

static void expect_refused(const int32_t *ids, int32_t n, int32_t from, const char *message)
{
    struct bt_error err = {0};
    cr_expect_eq(bt_session_check(ids, n, from, 10, VOCAB, &err), BT_ERR_ARG);
    cr_expect_str_eq(err.msg, message);
}

Test(score, tokens_that_a_session_cannot_take_are_named)
{
    static const int32_t good[] = {0, 4, 2}, above[] = {0, 5, 2}, below[] = {-1, 0, 0};
    struct bt_error err = {0};
    cr_expect_eq(bt_session_check(good, 3, 7, 10, VOCAB, &err), BT_OK, "%s", err.msg);
    expect_refused(good, 3, 8, "sequence: 11 tokens exceed the session's 10");
    expect_refused(above, 3, 4, "token 5: id 5 is outside the vocabulary 0..4");
    expect_refused(below, 3, 0, "token 0: id -1 is outside the vocabulary 0..4");
}

/* Equal logits give every token log(vocab) nats, and ties go to the lower id. */
Test(score, predictions_add_up)
{
    float logits[2 * VOCAB];
    for (int32_t i = 0; i < 2 * VOCAB; i++) {
        logits[i] = i < VOCAB ? 3.0f : i == VOCAB + 2 ? logf(4.0f) : 0.0f; /* 4 of 8 */
    }
    static const int32_t right[] = {0, 2};
    double nll[2] = {-1, -1};
    struct bt_score s = {.finite = true};
    bt_score_rows(logits, 2, VOCAB, right, &s, nll);
    cr_expect_float_eq(nll[0], log(VOCAB), 1e-12);
    cr_expect_float_eq(nll[1], log(2), 1e-7);
    cr_expect_eq(s.n_predictions, 2);
    cr_expect_eq(s.n_correct, 2);
    cr_expect(s.finite);
    bt_score_rows(logits, 1, VOCAB, &right[1], &s, NULL);
    cr_expect_float_eq(s.nll, 2 * log(VOCAB) + log(2), 1e-7);
    cr_expect_eq(s.n_correct, 2);
    cr_expect_eq(s.n_predictions, 3);
}

Test(score, a_number_that_is_none_is_seen)
{
    float logits[VOCAB] = {0, 1, 2, 3, 4};
    static const int32_t right[] = {4};
    struct bt_score s = {.finite = true};
    logits[1] = NAN;
    bt_score_rows(logits, 1, VOCAB, right, &s, NULL);
    cr_expect(!s.finite);
}
