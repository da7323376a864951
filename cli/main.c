#include "cli/command.h"

#include <signal.h>
#include <unistd.h>

/* A failed assertion has printed what it is about; scripts see the status of an internal error, not
 * that of a signal. */
static void on_abort(int signal_number)
{
    (void)signal_number;
    static const char text[] = "berth: internal error; please report it with the command line\n";
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    (void)n;
    _exit(bt_exit_status(BT_ERR_INTERNAL));
}

int main(int argc, char **argv)
{
    struct sigaction on_abort_action = {.sa_handler = on_abort};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    /* A closed pipe is an error of the write, told as one. */
    if (sigaction(SIGABRT, &on_abort_action, NULL) != 0 || sigaction(SIGPIPE, &ignore, NULL) != 0) {
        return bt_exit_status(BT_ERR_INTERNAL);
    }
    return bt_cli_main(argc, argv);
}
