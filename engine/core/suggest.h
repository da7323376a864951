/* "Did you mean": the known name nearest to one that was mistyped.
 *
 * For options, commands, scenario keys, models and GPUs alike. Threading: no state.
 */
#ifndef BT_ENGINE_CORE_SUGGEST_H
#define BT_ENGINE_CORE_SUGGEST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Number of single-character insertions, deletions, replacements and swaps of neighbours that turn
 * `a` into `b`, upper and lower case taken as equal. Bytes beyond BT_SUGGEST_MAX_BYTES count as
 * replaced. Source: Damerau 1964, in the form of optimal string alignment. */
int32_t bt_edit_distance(const char *a, const char *b);

enum { BT_SUGGEST_MAX_BYTES = 64 };

/* The nearest of n names to `given`, the first of equals; NULL when none is near enough (one edit a
 * started group of three characters of the longer one). Rows of `names` that are NULL are passed
 * over. A name that starts with all of `given` (two characters at least) is near; from four
 * characters on it is the nearest. */
const char *bt_suggest(const char *given, const char *const *names, int32_t n);

#ifdef __cplusplus
}
#endif

#endif
