/* Errors and assertions of the whole project.
 *
 * Two kinds of trouble, never mixed:
 *  - A programmer's error is a failed BT_ASSERT (on in every build) or BT_DEBUG_ASSERT (hot loops,
 *    on unless NDEBUG): it prints the condition and aborts.
 *  - An operating error is an enum bt_code returned, with a struct bt_error filled: what, which
 *    value, what is allowed. The first failure wins: an error that is already set is kept.
 *
 * Threading: a struct bt_error belongs to one thread at a time.
 */
#ifndef BT_ENGINE_CORE_ERROR_H
#define BT_ENGINE_CORE_ERROR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum bt_code {
    BT_OK = 0,
    BT_ERR_ARG,      /* a value out of its range, given by a caller or a user's option */
    BT_ERR_INPUT,    /* a file or scenario that is malformed: exit code 3 */
    BT_ERR_NOMEM,    /* memory refused by the system or an arena that is full */
    BT_ERR_IO,       /* a file that cannot be opened, read or written */
    BT_ERR_MISSING,  /* something this machine lacks (no GPU, no gnuplot): exit code 4 */
    BT_ERR_NOTFOUND, /* a name that is not known (model, GPU, run) */
    BT_ERR_UNFIT,    /* does not fit in memory: an answer, exit code 1 */
    BT_ERR_STORE,    /* the SQLite store refused */
    BT_ERR_SCRIPT,   /* a Lua scenario or hook failed: exit code 3 */
    BT_ERR_CUDA,     /* a CUDA call failed */
    BT_ERR_LIMIT,    /* a stated limit was passed (events, time, instructions) */
    BT_ERR_INTERNAL, /* cannot happen: exit code 70 */
};

enum { BT_ERROR_MSG_BYTES = 512 };

struct bt_error {
    enum bt_code code;
    int64_t detail;   /* errno, an SQLite or CUDA code, a line number; 0 when there is none */
    const char *file; /* source file that raised it; static storage */
    int32_t line;
    char msg[BT_ERROR_MSG_BYTES]; /* one sentence: the thing, the value, what is allowed */
};

#if defined(__GNUC__)
#define BT_NODISCARD          __attribute__((warn_unused_result))
#define BT_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define BT_NORETURN           __attribute__((noreturn))
#else
#define BT_NODISCARD
#define BT_PRINTF(fmt, first)
#define BT_NORETURN
#endif

/* Fills `err` (may be NULL) unless it holds an error already; returns `code` either way. Messages
 * longer than BT_ERROR_MSG_BYTES - 1 are cut. */
enum bt_code bt_error_set(struct bt_error *err, enum bt_code code, int64_t detail, const char *file,
                          int32_t line, const char *fmt, ...) BT_PRINTF(6, 7);

/* Forgets the error. */
void bt_error_clear(struct bt_error *err);

/* Name of a code without its prefix ("ARG", "INPUT"); never NULL. */
const char *bt_code_name(enum bt_code code);

/* Prints the failed condition to stderr and aborts. */
BT_NORETURN void bt_assert_fail(const char *cond, const char *file, int line);

/* Returns the code itself, so that the compiler sees that it is not BT_OK. */
#define BT_FAIL(err, code, detail, ...)                                                            \
    do {                                                                                           \
        (void)bt_error_set((err), (code), (detail), __FILE__, __LINE__, __VA_ARGS__);              \
        return (code);                                                                             \
    } while (0)

#define BT_TRY(expr)                                                                               \
    do {                                                                                           \
        enum bt_code bt_try_code_ = (expr);                                                        \
        if (bt_try_code_ != BT_OK) {                                                               \
            return bt_try_code_;                                                                   \
        }                                                                                          \
    } while (0)

#define BT_ASSERT(cond)                                                                            \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            bt_assert_fail(#cond, __FILE__, __LINE__);                                             \
        }                                                                                          \
    } while (0)

#ifdef NDEBUG
#define BT_DEBUG_ASSERT(cond)                                                                      \
    do {                                                                                           \
        (void)sizeof(cond);                                                                        \
    } while (0)
#else
#define BT_DEBUG_ASSERT(cond) BT_ASSERT(cond)
#endif

#ifdef __cplusplus
}
#endif

#endif
