#include "sim/workload/lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#ifdef BT_HAVE_ZSTD
#include <zstd.h>
#endif

enum { CHUNK_BYTES = 256 << 10 };

enum packing { PACKING_NONE, PACKING_GZIP, PACKING_ZSTD };

struct bt_lines {
    char *path; /* owned */
    FILE *file; /* owned */
    enum packing packing;
    unsigned char *packed; /* owned: compressed bytes, CHUNK_BYTES */
    int64_t packed_n, packed_at;
    z_stream gz;
    bool gz_open;
    bool frame_ended; /* the compressed stream is at the end of a member */
#ifdef BT_HAVE_ZSTD
    ZSTD_DStream *zst; /* owned */
#endif
    char *buf; /* owned: cap bytes and one for a NUL */
    int64_t cap, begin, end;
    bool at_eof;
    int64_t line; /* of the line given last */
    int64_t line_next;
};

static enum bt_code fill_packed(struct bt_lines *l, struct bt_error *err)
{
    if (l->packed_at < l->packed_n) {
        return BT_OK;
    }
    l->packed_at = 0;
    l->packed_n = (int64_t)fread(l->packed, 1, CHUNK_BYTES, l->file);
    if (ferror(l->file)) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot read: %s", l->path, strerror(errno));
    }
    return BT_OK;
}

static enum bt_code fail_packed(const struct bt_lines *l, const char *what, struct bt_error *err)
{
    BT_FAIL(err, BT_ERR_INPUT, 0, "%s: damaged %s data: %s", l->path,
            l->packing == PACKING_GZIP ? "gzip" : "Zstandard", what);
}

static enum bt_code read_gzip(struct bt_lines *l, char *to, int64_t room, int64_t *got,
                              struct bt_error *err)
{
    l->gz.next_out = (unsigned char *)to;
    l->gz.avail_out = (unsigned int)room;
    while (l->gz.avail_out > 0) {
        BT_TRY(fill_packed(l, err));
        if (l->packed_n == 0) {
            if (!l->frame_ended) {
                return fail_packed(l, "it ends early", err);
            }
            break;
        }
        if (l->frame_ended) {
            inflateReset(&l->gz); /* a file may hold several members one after the other */
            l->frame_ended = false;
        }
        l->gz.next_in = l->packed + l->packed_at;
        l->gz.avail_in = (unsigned int)(l->packed_n - l->packed_at);
        int rc = inflate(&l->gz, Z_NO_FLUSH);
        l->packed_at = l->packed_n - (int64_t)l->gz.avail_in;
        if (rc == Z_STREAM_END) {
            l->frame_ended = true;
        } else if (rc != Z_OK && rc != Z_BUF_ERROR) {
            return fail_packed(l, l->gz.msg != NULL ? l->gz.msg : "not gzip", err);
        }
    }
    *got = room - (int64_t)l->gz.avail_out;
    return BT_OK;
}

static enum bt_code read_zstd(struct bt_lines *l, char *to, int64_t room, int64_t *got,
                              struct bt_error *err)
{
#ifdef BT_HAVE_ZSTD
    ZSTD_outBuffer o = {.dst = to, .size = (size_t)room, .pos = 0};
    while (o.pos < o.size) {
        BT_TRY(fill_packed(l, err));
        if (l->packed_n == 0) {
            if (!l->frame_ended) {
                return fail_packed(l, "it ends early", err);
            }
            break;
        }
        ZSTD_inBuffer i = {
            .src = l->packed, .size = (size_t)l->packed_n, .pos = (size_t)l->packed_at};
        size_t rc = ZSTD_decompressStream(l->zst, &o, &i);
        if (ZSTD_isError(rc)) {
            return fail_packed(l, ZSTD_getErrorName(rc), err);
        }
        l->packed_at = (int64_t)i.pos;
        l->frame_ended = rc == 0;
    }
    *got = (int64_t)o.pos;
    return BT_OK;
#else
    (void)to;
    (void)room;
    (void)got;
    BT_FAIL(err, BT_ERR_MISSING, 0, "%s: this build reads no Zstandard; unpack it with zstd -d",
            l->path);
#endif
}

/* Appends more bytes to the buffer; sets at_eof when there are none. */
static enum bt_code fill(struct bt_lines *l, struct bt_error *err)
{
    if (l->begin > 0) {
        memmove(l->buf, l->buf + l->begin, (size_t)(l->end - l->begin));
        l->end -= l->begin;
        l->begin = 0;
    }
    if (l->end == l->cap) {
        if (l->cap >= BT_LINE_MAX_BYTES) {
            BT_FAIL(err, BT_ERR_INPUT, 0, "%s:%lld: a line of more than %d MiB", l->path,
                    (long long)l->line_next, BT_LINE_MAX_BYTES >> 20);
        }
        char *p = realloc(l->buf, (size_t)l->cap * 2 + 1);
        if (p == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory for a line", l->path);
        }
        l->buf = p;
        l->cap *= 2;
    }
    int64_t got = 0;
    int64_t room = l->cap - l->end;
    switch (l->packing) {
    case PACKING_NONE:
        got = (int64_t)fread(l->buf + l->end, 1, (size_t)room, l->file);
        if (ferror(l->file)) {
            BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot read: %s", l->path, strerror(errno));
        }
        break;
    case PACKING_GZIP:
        BT_TRY(read_gzip(l, l->buf + l->end, room, &got, err));
        break;
    case PACKING_ZSTD:
        BT_TRY(read_zstd(l, l->buf + l->end, room, &got, err));
        break;
    }
    l->end += got;
    l->at_eof = got == 0;
    return BT_OK;
}

static enum bt_code open_packing(struct bt_lines *l, struct bt_error *err)
{
    unsigned char magic[4] = {0};
    size_t n = fread(magic, 1, sizeof magic, l->file);
    if (ferror(l->file) || fseek(l->file, 0, SEEK_SET) != 0) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot read: %s", l->path, strerror(errno));
    }
    if (n >= 2 && magic[0] == 0x1f && magic[1] == 0x8b) {
        l->packing = PACKING_GZIP;
        enum { GZIP_ONLY = 16 };
        if (inflateInit2(&l->gz, MAX_WBITS + GZIP_ONLY) != Z_OK) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory to unpack", l->path);
        }
        l->gz_open = true;
    } else if (n == 4 && memcmp(magic, "\x28\xb5\x2f\xfd", 4) == 0) {
        l->packing = PACKING_ZSTD;
#ifdef BT_HAVE_ZSTD
        l->zst = ZSTD_createDStream();
        if (l->zst == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory to unpack", l->path);
        }
#endif
    } else if (n >= 2 && (memcmp(magic, "\xff\xfe", 2) == 0 || memcmp(magic, "\xfe\xff", 2) == 0)) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s:1: the file is UTF-16; expected UTF-8", l->path);
    }
    if (l->packing != PACKING_NONE) {
        l->packed = malloc(CHUNK_BYTES);
        if (l->packed == NULL) {
            BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory to unpack", l->path);
        }
    }
    return BT_OK;
}

static enum bt_code start(struct bt_lines *l, const char *path, struct bt_error *err)
{
    l->path = strdup(path);
    l->buf = malloc(CHUNK_BYTES + 1);
    if (l->path == NULL || l->buf == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory to read", path);
    }
    l->cap = CHUNK_BYTES;
    l->line_next = 1;
    l->file = fopen(path, "rb");
    if (l->file == NULL) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: cannot open: %s", path, strerror(errno));
    }
    BT_TRY(open_packing(l, err));
    BT_TRY(fill(l, err));
    while (!l->at_eof && l->end < 3) {
        BT_TRY(fill(l, err));
    }
    if (l->end >= 3 && memcmp(l->buf, "\xef\xbb\xbf", 3) == 0) {
        l->begin = 3;
    }
    return BT_OK;
}

enum bt_code bt_lines_open(const char *path, struct bt_lines **out, struct bt_error *err)
{
    struct bt_lines *l = calloc(1, sizeof *l);
    if (l == NULL) {
        BT_FAIL(err, BT_ERR_NOMEM, 0, "%s: no memory to read", path);
    }
    enum bt_code code = start(l, path, err);
    if (code != BT_OK) {
        bt_lines_close(l);
        return code;
    }
    *out = l;
    return BT_OK;
}

void bt_lines_close(struct bt_lines *l)
{
    if (l == NULL) {
        return;
    }
    if (l->file != NULL) {
        fclose(l->file);
    }
    if (l->gz_open) {
        inflateEnd(&l->gz);
    }
#ifdef BT_HAVE_ZSTD
    ZSTD_freeDStream(l->zst);
#endif
    free(l->packed);
    free(l->buf);
    free(l->path);
    free(l);
}

int64_t bt_lines_number(const struct bt_lines *l)
{
    return l->line;
}

const char *bt_lines_path(const struct bt_lines *l)
{
    return l->path;
}

/* True when the n bytes hold an odd number of double quotes. */
static bool quote_open(const char *s, int64_t n)
{
    bool open = false;
    const char *end = s + n;
    while ((s = memchr(s, '"', (size_t)(end - s))) != NULL) {
        open = !open;
        s++;
    }
    return open;
}

/* Finds the end of the line that starts at begin: the newline's offset from begin, the number of
 * newlines passed within quotes in *n_inner; -1 when the buffer holds no end yet. */
static int64_t find_end(const struct bt_lines *l, bool csv_quotes, int64_t *n_inner)
{
    const char *s = l->buf + l->begin;
    int64_t n = l->end - l->begin;
    int64_t from = 0;
    bool open = false;
    *n_inner = 0;
    for (;;) {
        const char *nl = n > from ? memchr(s + from, '\n', (size_t)(n - from)) : NULL;
        if (nl == NULL) {
            return -1;
        }
        if (csv_quotes && quote_open(s + from, nl - (s + from))) {
            open = !open;
        }
        if (!open) {
            return nl - s;
        }
        from = nl - s + 1;
        ++*n_inner;
    }
}

enum bt_code bt_lines_next(struct bt_lines *l, bool csv_quotes, char **text, int64_t *n_bytes,
                           struct bt_error *err)
{
    int64_t n_inner;
    int64_t n = find_end(l, csv_quotes, &n_inner);
    while (n < 0 && !l->at_eof) {
        BT_TRY(fill(l, err));
        n = find_end(l, csv_quotes, &n_inner);
    }
    int64_t skip = 1;
    if (n < 0) {
        n = l->end - l->begin;
        skip = 0;
        if (n == 0) {
            *text = NULL;
            *n_bytes = 0;
            return BT_OK;
        }
    }
    l->line = l->line_next;
    l->line_next += 1 + n_inner;
    char *s = l->buf + l->begin;
    l->begin += n + skip;
    if (n > 0 && s[n - 1] == '\r') {
        n--;
    }
    if (memchr(s, '\0', (size_t)n) != NULL) {
        BT_FAIL(err, BT_ERR_INPUT, 0, "%s:%lld: a NUL byte; expected a text file", l->path,
                (long long)l->line);
    }
    s[n] = '\0';
    *text = s;
    *n_bytes = n;
    return BT_OK;
}
