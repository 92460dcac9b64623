/* A temporary tree, a DirWatch on it, and everything that it told. Shared by the tests of
 * lib/event/dirwatch. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "lib/event/dirwatch.h"

typedef struct Fixture {
        char base[256]; /* temporary directory */
        char root[300]; /* base/root */
        sd_event *event;
        DirWatch *watch;
        Bound *bound;       /* of the watch; NULL: none */
        uint64_t slow_usec; /* on_change works for so long */
        char **changes;     /* what on_change said, "D:" before directories */
        size_t n_changes, n_allocated;
        unsigned n_rescans, n_degraded;
        char why[512], remedy[512], rescan_why[256];
} Fixture;

int fixture_setup(void **state);    /* makes base, not root */
int fixture_teardown(void **state); /* removes all */

/** Starts watching f->root. */
void fixture_watch(Fixture *f);
/** Runs the loop until it has nothing to do. */
void fixture_settle(Fixture *f);
/** Runs the loop until is_so() is true. Fails the test after a minute without an event, or after a
 * bounded number of turns. */
void fixture_until(Fixture *f, bool (*is_so)(Fixture *f));
void fixture_forget(Fixture *f); /* what was told so far */
bool fixture_was_reported(const Fixture *f, const char *what);

/* Paths are below base; directories on the way are made. */
void make_dir(Fixture *f, const char *path);
void make_file(Fixture *f, const char *path);
void move(Fixture *f, const char *from, const char *to);
void remove_all(Fixture *f, const char *path);
