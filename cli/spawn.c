#include "cli/spawn.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static bool is_absent(int error)
{
    return error == ENOENT || error == ENOTDIR || error == EACCES;
}

/* Starts the program with `output` as its stdout and stderr. Returns an errno. */
static int start(char *const argv[], int output, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0) {
        return error;
    }
    error = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (error == 0) {
        error = posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    }
    if (error == 0) {
        error = posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
    }
    if (error == 0) {
        error = posix_spawnp(pid, argv[0], &actions, NULL, argv, environ);
    }
    (void)posix_spawn_file_actions_destroy(&actions);
    return error;
}

/* Reads all there is; keeps the last line that is not blank, cut to fit. */
static void last_line(FILE *f, char said[BT_SPAWN_SAID_BYTES])
{
    char *line = NULL;
    size_t cap = 0;
    said[0] = '\0';
    for (ssize_t n = getline(&line, &cap, f); n >= 0; n = getline(&line, &cap, f)) {
        while (n > 0 && isspace((unsigned char)line[n - 1])) {
            line[--n] = '\0';
        }
        const char *text = line + strspn(line, " \t");
        if (*text != '\0') {
            (void)snprintf(said, BT_SPAWN_SAID_BYTES, "%s", text);
        }
    }
    free(line);
}

static enum bt_code wait_for(pid_t pid, const char *name, int *status, struct bt_error *err)
{
    int raw = 0;
    while (waitpid(pid, &raw, 0) < 0) {
        if (errno != EINTR) {
            BT_FAIL(err, BT_ERR_IO, errno, "%s: %s", name, strerror(errno));
        }
    }
    *status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + (WIFSIGNALED(raw) ? WTERMSIG(raw) : 0);
    return BT_OK;
}

enum bt_code bt_spawn(char *const argv[], int *status, char said[BT_SPAWN_SAID_BYTES],
                      struct bt_error *err)
{
    int ends[2];
    if (pipe(ends) != 0) {
        BT_FAIL(err, BT_ERR_IO, errno, "%s: %s", argv[0], strerror(errno));
    }
    (void)fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    (void)fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    pid_t pid = 0;
    int error = start(argv, ends[1], &pid);
    (void)close(ends[1]);
    if (error != 0) {
        (void)close(ends[0]);
        BT_FAIL(err, is_absent(error) ? BT_ERR_MISSING : BT_ERR_IO, error, "%s: %s", argv[0],
                strerror(error));
    }
    FILE *f = fdopen(ends[0], "r");
    if (f == NULL) {
        (void)close(ends[0]);
        said[0] = '\0';
    } else {
        last_line(f, said);
        (void)fclose(f);
    }
    return wait_for(pid, argv[0], status, err);
}
