/* The documentation against the program: what it quotes is what the program prints.
 *
 * README's blocks that are marked ```console hold command lines ("$ berth ...") and what they print
 * to stdout; they run in the source folder, in order, with one store. A block whose line before
 * is "<!-- slow -->" is not run by the test. BERTH_UPDATE_GOLDEN=1 writes files anew, but for slow
 * blocks; BERTH_UPDATE_GOLDEN=all those too. */
#include "tests/scenarios/program.h"

#include <criterion/criterion.h>

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LINE_BYTES = 4096 };

static const char SCHEMA_START[] = "<!-- berth help scenario -->\n", SCHEMA_END[] = "<!-- end -->";

static bool updating(void)
{
    return getenv("BERTH_UPDATE_GOLDEN") != NULL;
}

static bool updating_all(void)
{
    return updating() && strcmp(getenv("BERTH_UPDATE_GOLDEN"), "all") == 0;
}

static void write_source(const char *path, const char *text)
{
    char full[LINE_BYTES];
    (void)snprintf(full, sizeof full, "%s/%s", BT_TEST_SOURCE_DIR, path);
    FILE *f = fopen(full, "w");
    cr_assert_not_null(f, "%s", full);
    cr_assert_geq(fputs(text, f), 0);
    cr_assert_eq(fclose(f), 0);
}

/* The first line that differs says more than two whole texts. */
static void expect_same(const char *name, const char *got, const char *want)
{
    int line = 1;
    while (*got != '\0' || *want != '\0') {
        size_t n_got = strcspn(got, "\n"), n_want = strcspn(want, "\n");
        if (n_got != n_want || memcmp(got, want, n_got) != 0) {
            cr_expect(0,
                      "%s, line %d:\nprinted %.*s\nwritten %.*s\n(BERTH_UPDATE_GOLDEN=1 writes it "
                      "anew)",
                      name, line, (int)n_got, got, (int)n_want, want);
            return;
        }
        got += n_got + (got[n_got] == '\n');
        want += n_want + (want[n_want] == '\n');
        line++;
    }
}

Test(docs, scenarios_page_holds_the_schema_word_for_word)
{
    char *page = program_source_text("docs/SCENARIOS.md");
    char *start = strstr(page, SCHEMA_START);
    cr_assert_not_null(start);
    start += strlen(SCHEMA_START);
    char *end = strstr(start, SCHEMA_END);
    cr_assert_not_null(end);
    struct outcome o = program_run("help scenario");
    cr_assert_eq(o.status, 0);
    char *written = strndup(start, (size_t)(end - start));
    if (updating()) {
        char *text = NULL;
        size_t n_bytes = 0;
        FILE *f = open_memstream(&text, &n_bytes);
        fprintf(f, "%.*s%s%s", (int)(start - page), page, o.out, end);
        (void)fclose(f);
        write_source("docs/SCENARIOS.md", text);
        free(text);
    } else {
        expect_same("docs/SCENARIOS.md", o.out, written);
    }
    free(written);
    free(page);
}

/* Every key of an object stands on the page as `key`. */
static void expect_named(const json_t *object, const char *page, const char *what)
{
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        char quoted[128];
        (void)snprintf(quoted, sizeof quoted, "`%s`", key);
        cr_expect_not_null(strstr(page, quoted), "docs/METRICS.md does not tell %s %s", what, key);
    }
}

Test(docs, metrics_page_tells_every_metric)
{
    char *page = program_source_text("docs/METRICS.md");
    json_t *doc = program_json("simulate scenarios/prefix_share.lua", 0);
    const json_t *metrics = json_at(doc, "runs.0.metrics");
    expect_named(metrics, page, "the metric");
    expect_named(json_at(metrics, "windows.0"), page, "the window's");
    expect_named(json_at(metrics, "rejected_by"), page, "the reason");
    json_decref(doc);
    free(page);
}

Test(docs, every_scenario_is_listed)
{
    char *page = program_source_text("docs/SCENARIOS.md");
    char path[LINE_BYTES];
    (void)snprintf(path, sizeof path, "%s/scenarios", BT_TEST_SOURCE_DIR);
    DIR *d = opendir(path);
    cr_assert_not_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        size_t len = strlen(e->d_name);
        if (len > 4 && strcmp(e->d_name + len - 4, ".lua") == 0) {
            char quoted[300];
            (void)snprintf(quoted, sizeof quoted, "`%s`", e->d_name);
            cr_expect_not_null(strstr(page, quoted), "%s is not in docs/SCENARIOS.md", e->d_name);
            n++;
        }
    }
    (void)closedir(d);
    cr_expect_geq(n, 7);
    free(page);
}

/* ---- links ---- */

/* Checks "](target)" of a page; targets are relative to its folder. */
static void check_links(const char *page_path)
{
    char *page = program_source_text(page_path);
    const char *slash = strrchr(page_path, '/');
    int n_dir = slash == NULL ? 0 : (int)(slash - page_path + 1);
    for (const char *at = page; (at = strstr(at, "](")) != NULL;) {
        at += 2;
        size_t n = strcspn(at, ")#");
        if (n == 0 || strncmp(at, "http", 4) == 0) {
            continue;
        }
        char path[LINE_BYTES];
        (void)snprintf(path, sizeof path, "%s/%.*s%.*s", BT_TEST_SOURCE_DIR, n_dir, page_path,
                       (int)n, at);
        struct stat st;
        cr_expect_eq(stat(path, &st), 0, "%s: %.*s leads nowhere", page_path, (int)n, at);
    }
    free(page);
}

Test(docs, links_lead_somewhere)
{
    char path[LINE_BYTES];
    check_links("README.md");
    (void)snprintf(path, sizeof path, "%s/docs", BT_TEST_SOURCE_DIR);
    DIR *d = opendir(path);
    cr_assert_not_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        size_t len = strlen(e->d_name);
        if (len > 3 && strcmp(e->d_name + len - 3, ".md") == 0) {
            (void)snprintf(path, sizeof path, "docs/%s", e->d_name);
            check_links(path);
        }
    }
    (void)closedir(d);
}

/* ---- the README's transcripts ---- */

static void append_run(FILE *out, const char *line)
{
    char command[2 * LINE_BYTES];
    (void)snprintf(command, sizeof command,
                   "cd '%s' && PATH='%s':\"$PATH\" BERTH_DB='%s' sh -c '%s' 2>/dev/null",
                   BT_TEST_SOURCE_DIR, BT_TEST_BINARY_DIR, program_path("store.db"), line);
    cr_assert_null(strchr(line, '\''), "no single quotes in README's commands: %s", line);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    char buf[LINE_BYTES];
    size_t n = 0;
    fprintf(out, "$ %s\n", line);
    while ((n = fread(buf, 1, sizeof buf, pipe)) > 0) {
        cr_assert_eq(fwrite(buf, 1, n, out), n);
    }
    (void)pclose(pipe);
}

/* A block of commands, run again. */
static void append_block(FILE *out, const char *block, size_t n_bytes)
{
    for (const char *at = block; at < block + n_bytes;) {
        size_t n = strcspn(at, "\n");
        if (strncmp(at, "$ ", 2) == 0) {
            char line[LINE_BYTES];
            (void)snprintf(line, sizeof line, "%.*s", (int)n - 2, at + 2);
            append_run(out, line);
        }
        at += n + 1;
    }
}

Test(docs, readme_shows_what_the_program_prints)
{
    static const char fence[] = "```console\n", slow[] = "<!-- slow -->\n";
    char *page = program_source_text("README.md");
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *out = open_memstream(&text, &n_bytes);
    const char *at = page;
    int n_blocks = 0;
    for (const char *start; (start = strstr(at, fence)) != NULL; n_blocks++) {
        bool is_slow = start - page >= (long)strlen(slow) &&
                       strncmp(start - strlen(slow), slow, strlen(slow)) == 0;
        start += strlen(fence);
        const char *end = strstr(start, "```");
        cr_assert_not_null(end);
        fprintf(out, "%.*s", (int)(start - at), at);
        if (is_slow && !updating_all()) {
            fprintf(out, "%.*s", (int)(end - start), start);
        } else {
            append_block(out, start, (size_t)(end - start));
        }
        at = end;
    }
    fprintf(out, "%s", at);
    (void)fclose(out);
    cr_expect_geq(n_blocks, 5);
    if (updating()) {
        write_source("README.md", text);
    } else {
        expect_same("README.md", text, page);
    }
    free(text);
    free(page);
}
