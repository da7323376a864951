#include "cli/files.h"
#include "cli/out.h"

#include <math.h>

enum bt_unit bt_unit_by_suffix(const char *name)
{
    /* The longer suffix first: _bytes_per_s also ends in _per_s, and that in _s. */
    static const struct {
        const char *suffix;
        enum bt_unit unit;
    } suffixes[] = {
        {"bytes_per_s", BT_UNIT_BYTES_PER_S},
        {"flops_per_s", BT_UNIT_FLOPS},
        {"bytes_per_token", BT_UNIT_BYTES},
        {"_per_s", BT_UNIT_PER_S},
        {"_s", BT_UNIT_SECONDS},
        {"_ns", BT_UNIT_NS},
        {"_bytes", BT_UNIT_BYTES},
        {"_fraction", BT_UNIT_FRACTION},
        {"_utilization", BT_UNIT_FRACTION},
        {"_usd", BT_UNIT_USD},
        {"_usd_per_h", BT_UNIT_USD},
        {"_usd_per_mtok", BT_UNIT_USD},
        {"_usd_per_request", BT_UNIT_USD},
        {"seed", BT_UNIT_PLAIN},
    };
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        if (bt_ends_with(name, suffixes[i].suffix)) {
            return suffixes[i].unit;
        }
    }
    return BT_UNIT_NONE;
}

/* Three significant digits, or four where a fourth fits before the point: 1.23, 12.3, 123, 1234. */
static int decimals(double x)
{
    double a = fabs(x);
    return a == 0 || a >= 99.95 ? 0 : a >= 9.995 ? 1 : 2;
}

static void with_prefix(char buf[BT_OUT_NUMBER_BYTES], double x, double step,
                        const char *const *prefixes, const char *unit)
{
    int i = 0;
    while (fabs(x) >= 0.9995 * step && prefixes[i + 1] != NULL) {
        x /= step;
        i++;
    }
    int digits = decimals(x);
    if (i == 0 && x == floor(x)) {
        digits = 0;
    } else if (i > 0 && digits == 0 && x != 0) {
        digits = 1; /* 819.2 kB: four digits tell sizes apart that three do not */
    }
    (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "%.*f %s%s", digits, x, prefixes[i], unit);
}

static void format_seconds(char buf[BT_OUT_NUMBER_BYTES], double s)
{
    double a = fabs(s);
    if (a >= 2 * 86400) {
        (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "%.1f days", s / 86400);
    } else if (a >= 2 * 3600) {
        (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "%.1f h", s / 3600);
    } else if (a >= 120) {
        (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "%.1f min", s / 60);
    } else if (a >= 0.9995 || a == 0) {
        (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "%.*f s", decimals(s), s);
    } else if (a >= 0.9995e-3) {
        (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "%.*f ms", decimals(s * 1e3), s * 1e3);
    } else if (a >= 0.9995e-6) {
        (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "%.*f us", decimals(s * 1e6), s * 1e6);
    } else {
        (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "%.*f ns", decimals(s * 1e9), s * 1e9);
    }
}

/* 1234567 as 1,234,567; x is whole and its magnitude below 1e15. */
static void format_whole(char buf[BT_OUT_NUMBER_BYTES], double x)
{
    char digits[BT_OUT_NUMBER_BYTES];
    int n = snprintf(digits, sizeof digits, "%.0f", fabs(x));
    char *to = buf;
    if (x < 0) {
        *to++ = '-';
    }
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) {
            *to++ = ',';
        }
        *to++ = digits[i];
    }
    *to = '\0';
}

static void format_number(char buf[BT_OUT_NUMBER_BYTES], double x)
{
    double a = fabs(x);
    if (a < 1e15 && (x == floor(x) || a >= 9999.5)) {
        format_whole(buf, round(x));
    } else {
        (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "%.4g", x);
    }
}

static void format_usd(char buf[BT_OUT_NUMBER_BYTES], double x)
{
    char number[BT_OUT_NUMBER_BYTES];
    double a = fabs(x);
    if (a >= 1000) {
        format_whole(number, round(a));
    } else if (a >= 0.1 || a == 0) {
        (void)snprintf(number, sizeof number, "%.2f", a);
    } else {
        (void)snprintf(number, sizeof number, "%.3g", a);
    }
    (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "%s$%.30s", x < 0 ? "-" : "", number);
}

static void format_per_s(char buf[BT_OUT_NUMBER_BYTES], double x)
{
    char number[BT_OUT_NUMBER_BYTES];
    format_number(number, x);
    (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "%.36s/s", number);
}

void bt_unit_format(char buf[BT_OUT_NUMBER_BYTES], double x, enum bt_unit unit)
{
    static const char *const byte_prefixes[] = {"", "k", "M", "G", "T", "P", NULL};
    static const char *const flop_prefixes[] = {"", "k", "M", "G", "T", "P", "E", NULL};
    if (!isfinite(x)) {
        (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "-");
        return;
    }
    switch (unit) {
    case BT_UNIT_AUTO:
    case BT_UNIT_NONE:
        format_number(buf, x);
        return;
    case BT_UNIT_PLAIN:
        (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "%.17g", x);
        return;
    case BT_UNIT_SECONDS:
        format_seconds(buf, x);
        return;
    case BT_UNIT_NS:
        format_seconds(buf, x * 1e-9);
        return;
    case BT_UNIT_BYTES:
        with_prefix(buf, x, 1000, byte_prefixes, "B");
        return;
    case BT_UNIT_BYTES_PER_S:
        with_prefix(buf, x, 1000, byte_prefixes, "B/s");
        return;
    case BT_UNIT_FRACTION:
        (void)snprintf(buf, BT_OUT_NUMBER_BYTES, "%.1f%%", 100 * x);
        return;
    case BT_UNIT_PER_S:
        format_per_s(buf, x);
        return;
    case BT_UNIT_FLOPS:
        with_prefix(buf, x, 1000, flop_prefixes, "FLOP/s");
        return;
    case BT_UNIT_USD:
        format_usd(buf, x);
        return;
    }
}
