/* The built program's answers, word for word: tests/cli/transcripts/<name>.txt holds command lines
 * ("$ berth ..."), what they print (stdout and stderr together) and their exit status in brackets.
 * With BERTH_UPDATE_GOLDEN=1 the files are written anew. */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { LINE_BYTES = 4096 };

/* Runs a line in the source folder with the built program first in PATH and a store of its own, and
 * appends the outcome. */
static void run_line(FILE *out, const char *line)
{
    char command[2 * LINE_BYTES];
    (void)snprintf(command, sizeof command,
                   "cd '%s' && PATH='%s':\"$PATH\" && unset BERTH_DB && XDG_DATA_HOME=$(mktemp -d) "
                   "&& export XDG_DATA_HOME && { %s ; } 2>&1; status=$?; rm -r \"$XDG_DATA_HOME\"; "
                   "exit $status",
                   BT_TEST_SOURCE_DIR, BT_TEST_BINARY_DIR, line);
    FILE *pipe = popen(command, "r");
    cr_assert_not_null(pipe);
    char buf[LINE_BYTES];
    size_t n = 0;
    fprintf(out, "$ %s\n", line);
    while ((n = fread(buf, 1, sizeof buf, pipe)) > 0) {
        cr_assert_eq(fwrite(buf, 1, n, out), n);
    }
    int status = pclose(pipe);
    cr_assert(WIFEXITED(status), "%s", line);
    fprintf(out, "[%d]\n", WEXITSTATUS(status));
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    char *text = NULL;
    size_t n_bytes = 0;
    cr_assert_geq(getdelim(&text, &n_bytes, '\0', f), 0, "%s is empty", path);
    fclose(f);
    return text;
}

/* Runs every "$ " line of a transcript; lines that start with "# " stay where they are. */
static char *replay(const char *transcript)
{
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *out = open_memstream(&text, &n_bytes);
    cr_assert_not_null(out);
    for (const char *at = transcript; *at != '\0';) {
        size_t n = strcspn(at, "\n");
        if (strncmp(at, "$ ", 2) == 0) {
            char line[LINE_BYTES];
            (void)snprintf(line, sizeof line, "%.*s", (int)n - 2, at + 2);
            run_line(out, line);
        } else if (strncmp(at, "# ", 2) == 0) {
            fprintf(out, "%.*s\n", (int)n, at);
        }
        at += n;
        at += *at == '\n';
    }
    fclose(out);
    return text;
}

/* The first line that differs says more than two whole transcripts. */
static void expect_same(const char *name, const char *got, const char *want)
{
    int line = 1;
    while (*got != '\0' || *want != '\0') {
        size_t n_got = strcspn(got, "\n"), n_want = strcspn(want, "\n");
        if (n_got != n_want || memcmp(got, want, n_got) != 0) {
            cr_expect(0, "%s:%d:\n got %.*s\nwant %.*s", name, line, (int)n_got, got, (int)n_want,
                      want);
            return;
        }
        got += n_got + (got[n_got] == '\n');
        want += n_want + (want[n_want] == '\n');
        line++;
    }
}

static void check(const char *name)
{
    char path[LINE_BYTES];
    (void)snprintf(path, sizeof path, "%s/tests/cli/transcripts/%s.txt", BT_TEST_SOURCE_DIR, name);
    char *want = read_file(path);
    char *got = replay(want);
    if (getenv("BERTH_UPDATE_GOLDEN") != NULL) {
        FILE *f = fopen(path, "w");
        cr_assert_not_null(f);
        cr_assert_geq(fputs(got, f), 0);
        cr_assert_eq(fclose(f), 0);
    } else {
        expect_same(path, got, want);
    }
    free(want);
    free(got);
}

Test(transcript, shell)
{
    check("shell");
}

Test(transcript, memory)
{
    check("memory");
}

Test(transcript, trace)
{
    check("trace");
}

Test(transcript, replay)
{
    check("replay");
}

Test(transcript, run)
{
    check("run");
}

Test(transcript, eval)
{
    check("eval");
}
