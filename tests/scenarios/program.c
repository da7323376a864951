#include "tests/scenarios/program.h"

#include <criterion/criterion.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH_BYTES = 1024, COMMAND_BYTES = 8192 };

static char dir[PATH_BYTES / 2];
static pid_t owner;
static char *out_text, *err_text;
static struct outcome last;

static void remove_dir(void)
{
    DIR *d = getpid() == owner ? opendir(dir) : NULL;
    if (d == NULL) {
        return;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[PATH_BYTES];
        (void)snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        (void)remove(path); /* fails on "." and "..", as it should */
    }
    (void)closedir(d);
    (void)rmdir(dir);
    free(out_text);
    free(err_text);
}

void program_refuses(const char *args, int status, const char *message)
{
    struct outcome o = program_run(args);
    cr_expect_eq(o.status, status, "%s gave %d: %s", args, o.status, o.err);
    cr_expect_not_null(strstr(o.err, message), "%s:\n%s\nwithout \"%s\"", args, o.err, message);
    cr_expect_str_eq(o.out, "", "%s", args);
}

const char *program_path(const char *name)
{
    static char paths[4][PATH_BYTES];
    static int next;
    if (dir[0] == '\0') {
        (void)snprintf(dir, sizeof dir, "%s/program-XXXXXX", BT_TEST_BINARY_DIR);
        cr_assert_not_null(mkdtemp(dir));
        owner = getpid();
        (void)atexit(remove_dir);
    }
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    char *text = NULL;
    size_t n_bytes = 0;
    if (getdelim(&text, &n_bytes, '\0', f) < 0) { /* empty */
        free(text);
        text = calloc(1, 1);
    }
    cr_assert_not_null(text);
    (void)fclose(f);
    return text;
}

char *program_source_text(const char *path)
{
    char full[PATH_BYTES];
    (void)snprintf(full, sizeof full, "%s/%s", BT_TEST_SOURCE_DIR, path);
    return read_file(full);
}

const char *program_write(const char *name, const char *text)
{
    const char *path = program_path(name);
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f, "%s", path);
    cr_assert_geq(fputs(text, f), 0);
    cr_assert_eq(fclose(f), 0);
    return path;
}

struct outcome program_run(const char *args)
{
    char command[COMMAND_BYTES];
    const char *out = program_path("stdout"), *err = program_path("stderr");
    (void)snprintf(
        command, sizeof command, "cd '%s' && BERTH_DB='%s' '%s/berth' %s >'%s' 2>'%s' </dev/null",
        BT_TEST_SOURCE_DIR, program_path("store.db"), BT_TEST_BINARY_DIR, args, out, err);
    int status = system(command);
    cr_assert(WIFEXITED(status), "%s", args);
    free(out_text);
    free(err_text);
    out_text = read_file(out);
    err_text = read_file(err);
    last = (struct outcome){.status = WEXITSTATUS(status), .out = out_text, .err = err_text};
    return last;
}

const struct outcome *program_last(void)
{
    return &last;
}

json_t *program_json(const char *args, int status)
{
    char line[COMMAND_BYTES / 2];
    (void)snprintf(line, sizeof line, "%s --json", args);
    struct outcome o = program_run(line);
    cr_assert(status >= 0 ? o.status == status : o.status == 0 || o.status == 1,
              "berth %s gave %d: %s", line, o.status, o.err);
    json_error_t why;
    json_t *doc = json_loads(o.out, 0, &why);
    cr_assert_not_null(doc, "berth %s: line %d: %s", line, why.line, why.text);
    return doc;
}

const json_t *json_at(const json_t *doc, const char *path)
{
    const json_t *at = doc;
    for (const char *p = path; *p != '\0';) {
        char key[128];
        size_t n = strcspn(p, ".");
        (void)snprintf(key, sizeof key, "%.*s", (int)n, p);
        at = json_is_array(at) ? json_array_get(at, (size_t)strtoul(key, NULL, 10))
                               : json_object_get(at, key);
        cr_assert_not_null(at, "%s has no %s", path, key);
        p += n + (p[n] == '.');
    }
    return at;
}

double json_number_at(const json_t *doc, const char *path)
{
    const json_t *at = json_at(doc, path);
    cr_assert(json_is_number(at), "%s is no number", path);
    return json_number_value(at);
}

const char *json_text_at(const json_t *doc, const char *path)
{
    const json_t *at = json_at(doc, path);
    cr_assert(json_is_string(at), "%s is no text", path);
    return json_string_value(at);
}

const json_t *json_row(const json_t *doc, const char *list, const char *member, const char *value)
{
    size_t i;
    const json_t *row;
    json_array_foreach(json_at(doc, list), i, row)
    {
        if (strcmp(json_text_at(row, member), value) == 0) {
            return row;
        }
    }
    cr_assert_fail("%s: no row's %s is %s", list, member, value);
    return NULL;
}

const json_t *run_labelled(const json_t *doc, const char *label)
{
    return json_row(doc, "runs", "label", label);
}

double run_metric(const json_t *doc, const char *label, const char *metric)
{
    return json_number_at(json_at(run_labelled(doc, label), "metrics"), metric);
}
