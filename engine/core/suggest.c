#include "engine/core/suggest.h"

#include "engine/core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static char lower_ascii(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static int32_t min3(int32_t a, int32_t b, int32_t c)
{
    int32_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

static int32_t length_of(const char *s)
{
    size_t n = strlen(s);
    return n > INT32_MAX ? INT32_MAX : (int32_t)n;
}

static int32_t capped(int32_t n)
{
    return n > BT_SUGGEST_MAX_BYTES ? BT_SUGGEST_MAX_BYTES : n;
}

int32_t bt_edit_distance(const char *a, const char *b)
{
    BT_ASSERT(a != NULL);
    BT_ASSERT(b != NULL);
    int32_t n_a = length_of(a), n_b = length_of(b);
    int32_t m = capped(n_a), n = capped(n_b);
    int32_t beyond = (n_a > n_b ? n_a : n_b) - (m > n ? m : n);
    int32_t rows[3][BT_SUGGEST_MAX_BYTES + 1];
    for (int32_t j = 0; j <= n; j++) {
        rows[0][j] = j;
    }
    for (int32_t i = 1; i <= m; i++) {
        int32_t *row = rows[i % 3];
        const int32_t *above = rows[(i + 2) % 3];
        const int32_t *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (int32_t j = 1; j <= n; j++) {
            char ca = lower_ascii(a[i - 1]), cb = lower_ascii(b[j - 1]);
            row[j] = min3(above[j] + 1, row[j - 1] + 1, above[j - 1] + (ca != cb));
            if (i > 1 && j > 1 && ca == lower_ascii(b[j - 2]) && lower_ascii(a[i - 2]) == cb &&
                above2[j - 2] + 1 < row[j]) {
                row[j] = above2[j - 2] + 1;
            }
        }
    }
    return rows[m % 3][n] + beyond;
}

static bool starts_with(const char *name, const char *given)
{
    for (; *given != '\0'; name++, given++) {
        if (lower_ascii(*name) != lower_ascii(*given)) {
            return false;
        }
    }
    return true;
}

const char *bt_suggest(const char *given, const char *const *names, int32_t n)
{
    BT_ASSERT(given != NULL);
    BT_ASSERT(n >= 0);
    const char *best = NULL;
    int32_t best_distance = INT32_MAX;
    const char *completion = NULL;
    for (int32_t i = 0; i < n; i++) {
        if (names[i] == NULL) {
            continue;
        }
        int32_t longer = length_of(names[i]);
        longer = longer > length_of(given) ? longer : length_of(given);
        int32_t distance = bt_edit_distance(given, names[i]);
        if (distance <= (longer + 2) / 3 && distance < longer && distance < best_distance) {
            best = names[i];
            best_distance = distance;
        }
        if (completion == NULL && length_of(given) >= 2 && starts_with(names[i], given)) {
            completion = names[i];
        }
    }
    /* "int4" means int4-g128, however near int8 is. */
    return completion != NULL && length_of(given) >= 4 ? completion
           : best != NULL                              ? best
                                                       : completion;
}
