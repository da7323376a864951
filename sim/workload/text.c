#include "sim/workload/text.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads a quoted field that begins after its quote at *at; false when it does not close. */
static bool take_quoted(char *s, int64_t n, char sep, int64_t *at, struct bt_text *f)
{
    int64_t i = *at;
    char *to = s + i;
    f->s = to;
    for (; i < n; i++) {
        if (s[i] == '"') {
            if (i + 1 < n && s[i + 1] == '"') {
                i++;
            } else {
                break;
            }
        }
        *to++ = s[i];
    }
    if (i == n || (i + 1 < n && s[i + 1] != sep)) {
        return false;
    }
    f->n = (int32_t)(to - f->s);
    *at = i + 1;
    return true;
}

int32_t bt_csv_split(char *s, int64_t n, char sep, struct bt_text *out, int32_t cap)
{
    int32_t n_fields = 0;
    int64_t i = 0;
    for (;;) {
        struct bt_text f = {0};
        if (i < n && s[i] == '"') {
            i++;
            if (!take_quoted(s, n, sep, &i, &f)) {
                return -1;
            }
        } else {
            f.s = s + i;
            while (i < n && s[i] != sep) {
                i++;
            }
            f.n = (int32_t)(s + i - f.s);
        }
        if (n_fields < cap) {
            out[n_fields] = f;
        }
        n_fields++;
        if (i >= n) {
            return n_fields;
        }
        i++;
    }
}

static void trim(const char **s, int32_t *n)
{
    while (*n > 0 && (**s == ' ' || **s == '\t')) {
        ++*s;
        --*n;
    }
    while (*n > 0 && ((*s)[*n - 1] == ' ' || (*s)[*n - 1] == '\t')) {
        --*n;
    }
}

/* Digits scaled by 10^point_shift, rounded half up, as an integer. */
static bool parse_scaled(const char *s, int32_t n, int32_t point_shift, int64_t *out)
{
    trim(&s, &n);
    bool negative = n > 0 && *s == '-';
    if (n > 0 && (*s == '-' || *s == '+')) {
        s++;
        n--;
    }
    uint64_t v = 0;
    int32_t n_digits = 0;
    int32_t i = 0;
    int32_t n_frac = 0; /* fractional digits taken */
    bool point = false;
    uint32_t round_digit = 0;
    bool rounded = false;
    for (; i < n; i++) {
        if (s[i] == '.' && !point) {
            point = true;
            continue;
        }
        if (!is_digit(s[i])) {
            break;
        }
        n_digits++;
        uint32_t d = (uint32_t)(s[i] - '0');
        if (point && n_frac == point_shift) {
            round_digit = rounded ? round_digit : d;
            rounded = true;
            continue;
        }
        if (v > (uint64_t)INT64_MAX / 10) {
            return false;
        }
        v = v * 10 + d;
        n_frac += point;
    }
    if (n_digits == 0 || i != n) {
        return false;
    }
    for (; n_frac < point_shift; n_frac++) {
        if (v > (uint64_t)INT64_MAX / 10) {
            return false;
        }
        v *= 10;
    }
    v += round_digit >= 5;
    if (v > (uint64_t)INT64_MAX) {
        return false;
    }
    *out = negative ? -(int64_t)v : (int64_t)v;
    return true;
}

bool bt_parse_whole(const char *s, int32_t n, int64_t *out)
{
    trim(&s, &n);
    const char *point = n > 0 ? memchr(s, '.', (size_t)n) : NULL;
    if (point == NULL) {
        return parse_scaled(s, n, 0, out);
    }
    for (const char *p = point + 1; p < s + n; p++) {
        if (*p != '0') {
            return false;
        }
    }
    return parse_scaled(s, (int32_t)(point - s), 0, out);
}

bool bt_parse_real(const char *s, int32_t n, double *value)
{
    trim(&s, &n);
    enum { NUMBER_MAX = 64 };
    char text[NUMBER_MAX];
    if (n <= 0 || n >= NUMBER_MAX || !(is_digit(*s) || *s == '-' || *s == '+' || *s == '.')) {
        return false;
    }
    for (int32_t i = 0; i < n; i++) {
        if (!is_digit(s[i]) && strchr("+-.eE", s[i]) == NULL) {
            return false; /* strtod would take hexadecimals, "inf" and "nan" */
        }
    }
    memcpy(text, s, (size_t)n);
    text[n] = '\0';
    char *end;
    *value = strtod(text, &end);
    return end == text + n && isfinite(*value);
}

static int32_t unit_shift(enum bt_time_unit unit)
{
    switch (unit) {
    case BT_TIME_S:
        return 9;
    case BT_TIME_MS:
        return 6;
    case BT_TIME_US:
        return 3;
    case BT_TIME_NS:
    case BT_TIME_AUTO:
    case BT_TIME_ISO:
        break;
    }
    return 0;
}

bool bt_parse_time(const char *s, int32_t n, enum bt_time_unit unit, int64_t *out_ns)
{
    BT_DEBUG_ASSERT(unit != BT_TIME_AUTO && unit != BT_TIME_ISO);
    int32_t shift = unit_shift(unit);
    if (parse_scaled(s, n, shift, out_ns)) {
        return true;
    }
    double v;
    if (!bt_parse_real(s, n, &v)) {
        return false;
    }
    v *= pow(10.0, shift);
    if (!(fabs(v) < 9.2e18)) {
        return false;
    }
    *out_ns = llround(v);
    return true;
}

/* Days from 1970-01-01 of a Gregorian date (Hinnant's days_from_civil). */
static int64_t days_of_date(int32_t y, int32_t m, int32_t d)
{
    y -= m <= 2;
    int32_t era = (y >= 0 ? y : y - 399) / 400;
    int32_t yoe = y - era * 400;
    int32_t doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    int32_t doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
    return (int64_t)era * 146097 + doe - 719468;
}

static int32_t days_in_month(int32_t y, int32_t m)
{
    static const int32_t days[12] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    return m == 2 && leap ? 29 : days[m - 1];
}

/* Takes exactly n_digits digits. */
static bool take_number(const char **s, const char *end, int32_t n_digits, int32_t *out)
{
    int32_t v = 0;
    for (int32_t i = 0; i < n_digits; i++) {
        if (*s == end || !is_digit(**s)) {
            return false;
        }
        v = v * 10 + (*(*s)++ - '0');
    }
    *out = v;
    return true;
}

static bool take_char(const char **s, const char *end, char c)
{
    if (*s == end || **s != c) {
        return false;
    }
    ++*s;
    return true;
}

/* The rest after the fraction: nothing, Z or an offset, in seconds east. */
static bool take_zone(const char *s, const char *end, int32_t *offset_s, bool *has_zone)
{
    *offset_s = 0;
    *has_zone = s != end;
    if (s == end) {
        return true;
    }
    if (*s == 'Z' || *s == 'z') {
        return s + 1 == end;
    }
    bool west = *s == '-';
    int32_t h, m = 0;
    if (!west && *s != '+') {
        return false;
    }
    s++;
    if (!take_number(&s, end, 2, &h)) {
        return false;
    }
    if (s != end) {
        take_char(&s, end, ':');
        if (!take_number(&s, end, 2, &m)) {
            return false;
        }
    }
    *offset_s = (h * 3600 + m * 60) * (west ? -1 : 1);
    return s == end && h <= 14 && m < 60;
}

bool bt_parse_iso(const char *s, int32_t n, int64_t *out_ns, bool *has_zone)
{
    trim(&s, &n);
    const char *end = s + n;
    int32_t y, mo, d, h, mi, sec;
    if (!take_number(&s, end, 4, &y) || !take_char(&s, end, '-') || !take_number(&s, end, 2, &mo) ||
        !take_char(&s, end, '-') || !take_number(&s, end, 2, &d)) {
        return false;
    }
    if (!take_char(&s, end, 'T') && !take_char(&s, end, ' ')) {
        return false;
    }
    if (!take_number(&s, end, 2, &h) || !take_char(&s, end, ':') || !take_number(&s, end, 2, &mi) ||
        !take_char(&s, end, ':') || !take_number(&s, end, 2, &sec)) {
        return false;
    }
    if (y < 1900 || y > 2110 || mo < 1 || mo > 12 || d < 1 || d > days_in_month(y, mo) || h > 23 ||
        mi > 59 || sec > 59) {
        return false;
    }
    int64_t frac_ns = 0;
    if (take_char(&s, end, '.')) {
        int32_t n_frac = 0;
        for (; s < end && is_digit(*s) && n_frac < 9; n_frac++) {
            frac_ns = frac_ns * 10 + (*s++ - '0');
        }
        if (n_frac == 0) {
            return false;
        }
        for (; n_frac < 9; n_frac++) {
            frac_ns *= 10;
        }
    }
    int32_t offset_s;
    if (!take_zone(s, end, &offset_s, has_zone)) {
        return false;
    }
    int64_t t_s = days_of_date(y, mo, d) * 86400 + h * 3600 + mi * 60 + sec - offset_s;
    *out_ns = t_s * 1000000000 + frac_ns;
    return true;
}

static const struct {
    const char *name;
    enum bt_time_unit unit;
} units[] = {
    {"auto", BT_TIME_AUTO}, {"iso", BT_TIME_ISO}, {"s", BT_TIME_S},
    {"ms", BT_TIME_MS},     {"us", BT_TIME_US},   {"ns", BT_TIME_NS},
};

bool bt_unit_parse(const char *s, int64_t n, enum bt_time_unit *out)
{
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if ((int64_t)strlen(units[i].name) == n && memcmp(units[i].name, s, (size_t)n) == 0) {
            *out = units[i].unit;
            return true;
        }
    }
    return false;
}

const char *bt_unit_name(enum bt_time_unit u)
{
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (units[i].unit == u) {
            return units[i].name;
        }
    }
    return "auto";
}

enum bt_time_unit bt_unit_of_name(const char *name)
{
    static const struct {
        const char *word;
        enum bt_time_unit unit;
    } words[] = {
        {"ns", BT_TIME_NS},  {"nanoseconds", BT_TIME_NS},
        {"us", BT_TIME_US},  {"microseconds", BT_TIME_US},
        {"ms", BT_TIME_MS},  {"milliseconds", BT_TIME_MS},
        {"s", BT_TIME_S},    {"sec", BT_TIME_S},
        {"secs", BT_TIME_S}, {"seconds", BT_TIME_S},
    };
    /* The last word of letters, which a mark of some kind must separate from what is before. */
    size_t end = strlen(name);
    while (end > 0 && !isalpha((unsigned char)name[end - 1])) {
        end--;
    }
    size_t begin = end;
    while (begin > 0 && isalpha((unsigned char)name[begin - 1])) {
        begin--;
    }
    if (begin == 0) {
        return BT_TIME_AUTO;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *w = words[i].word;
        size_t len = strlen(w);
        bool same = len == end - begin;
        for (size_t j = 0; same && j < len; j++) {
            same = tolower((unsigned char)name[begin + j]) == w[j];
        }
        if (same) {
            return words[i].unit;
        }
    }
    return BT_TIME_AUTO;
}
