/* The state directory: opens the database in it, or says why it cannot; writes again what could not
 * be written; and ends the agent when the directory is removed or replaced while it runs, since no
 * later start would find what is written then. */
#include "agent/agent_private.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>

#include "agent/intake/intake.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "lib/event/timer.h"

#define STORE_RETRY_USEC (5 * USEC_PER_SEC)

/* ---- opening ---- */

/* Tells whether the process was killed, but waits for a mount that does not answer: its first
 * thread is a zombie, or waits in the kernel (proc(5)). */
static bool is_hung(pid_t pid) {
        char path[32];
        _cleanup_free_ char *text = NULL;
        uint64_t pending = 0;
        (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
        if (pid <= 0 || fs_read_file(AT_FDCWD, path, 4096, &text, NULL) < 0)
                return false;
        const char *state = strstr(text, "\nState:\t"), *signals = strstr(text, "\nSigPnd:");
        if (!state || !strchr("ZDX", state[strlen("\nState:\t")]))
                return false;
        if (state[strlen("\nState:\t")] != 'D')
                return true;
        /* a process that runs waits for its disk now and then, without a SIGKILL */
        return signals && sscanf(signals, "\nSigPnd: %" SCNx64, &pending) == 1 &&
               (pending >> (SIGKILL - 1) & 1);
}

static void log_locked(const Agent *a, pid_t holder) {
        const Config *c = a->config;
        if (!is_hung(holder)) {
                log_error(0,
                          "state directory '%s' is in use by the agent with pid %d; stop that one, "
                          "or set another state_directory",
                          c->state_directory, (int)holder);
                return;
        }
        StrBuf volumes = STRBUF_INIT;
        for (size_t i = 0; i < c->n_destinations; i++)
                if (c->destinations[i].type == CONFIG_VOLUME)
                        strbuf_addf(&volumes, "%s'%s'", volumes.n ? ", " : "",
                                    c->destinations[i].path);
        log_error(0,
                  "state directory '%s' is in use by the agent with pid %d, which has ended but "
                  "waits for a mount that does not answer; repair or unmount (umount -f) that of "
                  "%s, or restart the node",
                  c->state_directory, (int)holder,
                  volumes.n ? volumes.text : "the sources and destinations");
        strbuf_done(&volumes);
}

static void log_put_aside(const char *name) {
        if (store_is_of_other_build(name))
                log_warning(0,
                            "the state database was written by another build of neuron-collectd, "
                            "whose tables differ; it was put aside as '%s' and a new one is built "
                            "from what is on disk and at the destinations; lost are counters, "
                            "pins, cancellations, notes of hooks, agreed names and the history of "
                            "deleted sources",
                            name);
        else
                log_warning(0,
                            "the state database could not be read; it was put aside as '%s' and a "
                            "new one is built from what is on disk",
                            name);
}

int agent_state_open(Agent *a) {
        _cleanup_free_ char *put_aside = NULL;
        const char *dir = a->config->state_directory;
        pid_t holder = 0;
        int r = store_open(&a->store, dir, &put_aside, &holder);
        if (r == STORE_E_LOCKED) {
                if (!a->once)
                        log_locked(a, holder);
                return AGENT_E_LOCKED;
        }
        if (r == -EBUSY) {
                log_error(0, "another program has '%s/state.db' open; close it", dir);
                return r;
        }
        if (r < 0) {
                log_error(r,
                          "cannot open the state in '%s'; check that the directory exists, is "
                          "writable by this user and has free space",
                          dir);
                return r;
        }
        if (put_aside)
                log_put_aside(put_aside);
        return 0;
}

/* ---- while the agent runs ---- */

static int on_store_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        Agent *a = userdata;
        (void)usec;
        if (!bundle_table_retry(a->bundles))
                return timer_rearm(source, STORE_RETRY_USEC);
        for (size_t i = 0; i < a->n_sources; i++) /* what was refused meanwhile is found now */
                intake_source_flush(a->sources[i], false);
        return 0;
}

/* Ends the agent: no later start finds what it would write now, so bundles that it accepts would be
 * lost. */
static void stop_without_state(Agent *a) {
        if (a->is_stateless)
                return;
        a->is_stateless = true;
        log_error(
                0,
                "the state directory '%s' was removed or replaced while the agent ran: nothing is "
                "accepted any more, and the agent ends; start it again, it then finds what is at "
                "the sources",
                a->config->state_directory);
        (void)sd_event_exit(a->event, EXIT_FAILURE); /* fails only in a loop that ends */
}

static int on_state_directory(sd_event_source *source, const struct inotify_event *event,
                              void *userdata) {
        Agent *a = userdata;
        (void)source, (void)event;
        if (!store_is_in_place(a->store))
                stop_without_state(a);
        return 0;
}

/* Without the watch, or where another node removes the directory, the next change notices it. */
void agent_state_watch(Agent *a) {
        int r = sd_event_add_inotify(a->event, &a->state_watch, a->config->state_directory,
                                     IN_DELETE_SELF | IN_MOVE_SELF | IN_DELETE | IN_MOVED_FROM |
                                             IN_ONLYDIR,
                                     on_state_directory, a);
        if (r < 0)
                log_debug("cannot watch the state directory: %s", strerror(-r));
}

void agent_state_on_error(void *userdata) {
        Agent *a = userdata;
        if (bundle_table_store_error(a->bundles) == -ESTALE) {
                stop_without_state(a);
                return;
        }
        if (a->store_timer && sd_event_source_get_enabled(a->store_timer, NULL) > 0)
                return; /* a further error does not postpone it */
        int r = timer_arm(&a->store_timer, &(TimerOptions){ .event = a->event,
                                                            .usec = STORE_RETRY_USEC,
                                                            .handler = on_store_timer,
                                                            .userdata = a });
        if (r < 0)
                log_error(r, "cannot arm the timer that writes the state database again");
}
