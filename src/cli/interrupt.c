/* SIGINT and SIGTERM: a command ends at the next poll, or where it is patient at the second of them. The third ends it where it is. */
#include "cli.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t interrupted, patience;

static void interrupt(int number) {
    if (interrupted < 2) {
        interrupted++;
        return;
    }
    signal(number, SIG_DFL);
    raise(number);
}

void cli_catch_interrupts(void) {
    struct sigaction action;
    interrupted = patience = 0;
    memset(&action, 0, sizeof action);
    action.sa_handler = interrupt;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int cli_is_cancelled(void *user) {
    (void)user;
    return interrupted > patience;
}

void cli_set_patient(int patient) { patience = patient != 0; }

int cli_interrupts(void) { return interrupted; }
