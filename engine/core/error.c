#include "engine/core/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum bt_code bt_error_set(struct bt_error *err, enum bt_code code, int64_t detail, const char *file,
                          int32_t line, const char *fmt, ...)
{
    BT_ASSERT(code != BT_OK);
    if (err == NULL || err->code != BT_OK) {
        return code;
    }
    err->code = code;
    err->detail = detail;
    err->file = file;
    err->line = line;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(err->msg, sizeof err->msg, fmt, args);
    va_end(args);
    return code;
}

void bt_error_clear(struct bt_error *err)
{
    *err = (struct bt_error){0};
}

const char *bt_code_name(enum bt_code code)
{
    switch (code) {
    case BT_OK:
        return "OK";
    case BT_ERR_ARG:
        return "ARG";
    case BT_ERR_INPUT:
        return "INPUT";
    case BT_ERR_NOMEM:
        return "NOMEM";
    case BT_ERR_IO:
        return "IO";
    case BT_ERR_MISSING:
        return "MISSING";
    case BT_ERR_NOTFOUND:
        return "NOTFOUND";
    case BT_ERR_UNFIT:
        return "UNFIT";
    case BT_ERR_STORE:
        return "STORE";
    case BT_ERR_SCRIPT:
        return "SCRIPT";
    case BT_ERR_CUDA:
        return "CUDA";
    case BT_ERR_LIMIT:
        return "LIMIT";
    case BT_ERR_INTERNAL:
        return "INTERNAL";
    }
    return "?";
}

void bt_assert_fail(const char *cond, const char *file, int line)
{
    fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, cond);
    abort();
}
