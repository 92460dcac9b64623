#include "tests/lib/event/dirwatch_fixture.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "tests/harness/unit.h"

#define TURNS_MAX 200000
#define IDLE_TURNS_MAX 6000 /* of 10 ms */

static void on_change(const char *relative, bool is_dir, void *userdata) {
        Fixture *f = userdata;
        size_t bytes = strlen(relative) + 3;

        for (uint64_t end = clock_boottime_usec() + f->slow_usec;
             f->slow_usec > 0 && clock_boottime_usec() < end;)
                ;
        if (f->n_changes == f->n_allocated) {
                f->n_allocated = f->n_allocated ? 2 * f->n_allocated : 64;
                f->changes = realloc(f->changes, f->n_allocated * sizeof *f->changes);
                assert_non_null(f->changes);
        }
        f->changes[f->n_changes] = malloc(bytes);
        assert_non_null(f->changes[f->n_changes]);
        (void)snprintf(f->changes[f->n_changes++], bytes, "%s%s", is_dir ? "D:" : "", relative);
}

static void on_rescan(const char *why, void *userdata) {
        Fixture *f = userdata;

        f->n_rescans++;
        (void)snprintf(f->rescan_why, sizeof f->rescan_why, "%s", why);
}

static void on_degraded(const char *why, const char *remedy, void *userdata) {
        Fixture *f = userdata;

        f->n_degraded++;
        (void)snprintf(f->why, sizeof f->why, "%s", why);
        (void)snprintf(f->remedy, sizeof f->remedy, "%s", remedy);
}

int fixture_setup(void **state) {
        Fixture *f = calloc(1, sizeof *f);
        const char *tmp = getenv("TMPDIR");

        assert_non_null(f);
        (void)snprintf(f->base, sizeof f->base, "%s/dirwatch.XXXXXX", tmp ? tmp : "/tmp");
        assert_non_null(mkdtemp(f->base));
        (void)snprintf(f->root, sizeof f->root, "%s/root", f->base);
        assert_int_equal(sd_event_new(&f->event), 0);
        *state = f;
        return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw) {
        (void)st;
        (void)type;
        (void)ftw;
        return remove(path);
}

int fixture_teardown(void **state) {
        Fixture *f = *state;

        dirwatch_free(f->watch);
        fixture_forget(f);
        free(f->changes);
        sd_event_unref(f->event);
        (void)nftw(f->base, remove_one, 32, FTW_DEPTH | FTW_PHYS);
        free(f);
        return 0;
}

void fixture_watch(Fixture *f) {
        DirWatchCallbacks callbacks = { .bound = f->bound };

        callbacks.on_change = on_change;
        callbacks.on_rescan = on_rescan;
        callbacks.on_degraded = on_degraded;
        callbacks.userdata = f;

        assert_int_equal(dirwatch_new(&f->watch, f->event, f->root, &callbacks), 0);
}

void fixture_settle(Fixture *f) {
        for (unsigned i = 0; i < TURNS_MAX; i++) {
                int r = sd_event_run(f->event, 0);

                assert_true(r >= 0);
                if (r == 0)
                        return;
        }
        fail_msg("the loop does not come to rest");
}

void fixture_until(Fixture *f, bool (*is_so)(Fixture *f)) {
        for (unsigned i = 0, n_idle = 0; i < TURNS_MAX && n_idle < IDLE_TURNS_MAX; i++) {
                int r;

                if (is_so(f))
                        return;
                r = sd_event_run(f->event, 10000);
                assert_true(r >= 0);
                n_idle = r > 0 ? 0 : n_idle + 1;
        }
        fail_msg("what was waited for did not come");
}

void fixture_forget(Fixture *f) {
        while (f->n_changes > 0)
                free(f->changes[--f->n_changes]);
        f->n_rescans = 0;
}

bool fixture_was_reported(const Fixture *f, const char *what) {
        for (size_t i = 0; i < f->n_changes; i++)
                if (strcmp(f->changes[i], what) == 0)
                        return true;
        return false;
}

static void in_base(Fixture *f, const char *path, char buf[static 4096]) {
        assert_true(snprintf(buf, 4096, "%s/%s", f->base, path) < 4096);
}

void make_dir(Fixture *f, const char *path) {
        char full[4096];

        in_base(f, path, full);
        for (char *p = full + strlen(f->base) + 1;; p++) {
                char c = *p;

                if (c != '/' && c != '\0')
                        continue;
                *p = '\0';
                (void)mkdir(full, 0755);
                *p = c;
                if (c == '\0')
                        break;
        }
        assert_int_equal(access(full, F_OK), 0);
}

void make_file(Fixture *f, const char *path) {
        char full[4096], *slash;
        int fd;

        (void)snprintf(full, sizeof full, "%s", path);
        slash = strrchr(full, '/');
        if (slash) {
                *slash = '\0';
                make_dir(f, full);
        }
        in_base(f, path, full);
        fd = open(full, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, "x", 1), 1);
        (void)close(fd);
}

void move(Fixture *f, const char *from, const char *to) {
        char a[4096], b[4096];

        in_base(f, from, a);
        in_base(f, to, b);
        assert_int_equal(rename(a, b), 0);
}

void remove_all(Fixture *f, const char *path) {
        char full[4096];

        in_base(f, path, full);
        assert_int_equal(nftw(full, remove_one, 32, FTW_DEPTH | FTW_PHYS), 0);
}
