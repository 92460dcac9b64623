/* The power fails: what was answered with 0 is there afterwards. A file system of its own on a loop
 * device is shut down by the kernel without flushing anything, and mounted again: only what was
 * fsynced is left. */
#include "tests/agent/store/ledger_test.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/harness/mounts.h"
#include "tests/harness/skip.h"

#define ROUNDS 6

static bool do_command(const Scratch *scratch, const char *command) {
        char text[PATH_MAX + 512];
        (void)snprintf(text, sizeof text, "cd '%s' && { %s; } > /dev/null 2>&1", scratch->path,
                       command);
        return system(text) == 0;
}

/* Adds bundles with a ledger's part each, for ever; says each number only after it is committed. In
 * the last one nothing is told. */
static void add_and_report(const char *path, int tell_fd, uint32_t from) {
        Store *s = NULL;
        pid_t pid;

        if (store_open(&s, path, NULL, &pid) != 0)
                _exit(1);
        for (uint32_t i = from;; i++) {
                char id[32];
                (void)snprintf(id, sizeof id, "b%08u", i);
                BundleRecord b = simple_record(id, BUNDLE_SHIPPING, i);
                LedgerUpload u = intent(id, i);
                LedgerPart p = some_part(1, 3, 1000);
                if (store_add(s, &b) != 0 || store_ledger_begin(s, id, "archive", &u) != 0 ||
                    store_ledger_set_upload_id(s, id, "archive", id) != 0 ||
                    store_ledger_put_part(s, id, "archive", &p) != 0 || store_last_error(s) < 0)
                        _exit(2);
                b.state = BUNDLE_DELIVERED;
                if (store_update(s, &b) != 0 || write(tell_fd, &i, sizeof i) != sizeof i)
                        _exit(3);
                bundle_record_done(&b);
        }
}

/* @param last  its last commit may have been under way when the power failed. An fsync(2) that the
 * kernel is in when FS_IOC_SHUTDOWN comes may return 0 without having written the journal (ext4,
 * seen with nothing but pwrite and fsync: 38 of 300 times); no earlier one does. */
static void assert_there(Store *s, uint32_t number, bool last) {
        char id[32];
        BundleRecord b;
        LedgerUpload u;

        (void)snprintf(id, sizeof id, "b%08u", number);
        assert_int_equal(store_get(s, id, &b), 0);
        assert_true(b.state == BUNDLE_DELIVERED || (last && b.state == BUNDLE_SHIPPING));
        bundle_record_done(&b);
        assert_int_equal(store_ledger_get(s, id, "archive", &u), 0);
        assert_string_equal(u.upload_id, id);
        ledger_upload_done(&u);
        assert_int_equal(parts_of(s, id, "archive"), 1);
}

/* What was told in each round, the first and the last; between two rounds stands what was not. */
typedef struct Told {
        uint32_t first[ROUNDS], last[ROUNDS];
        unsigned n;
} Told;

/* @return the next number to be added */
static uint32_t lose_power(const Scratch *scratch, uint32_t from, Told *all) {
        char path[PATH_MAX + 16], *aside = NULL;
        uint32_t told = from, more;
        StoreCounts counts;
        Store *s = NULL;
        pid_t pid;
        int fds[2];

        (void)snprintf(path, sizeof path, "%s/disk/state", scratch->path);
        assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
        pid_t child = fork();
        if (child == 0)
                add_and_report(path, fds[1], from);
        (void)close(fds[1]);
        for (unsigned i = 0; i < 7 * (all->n + 1); i++)
                assert_int_equal(read(fds[0], &told, sizeof told), sizeof told);
        assert_true(do_command(scratch, "xfs_io -x -c shutdown disk"));
        while (read(fds[0], &more, sizeof more) == sizeof more)
                told = more;
        (void)close(fds[0]);
        (void)kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        assert_true(do_command(scratch, "umount disk && mount -o loop image disk"));

        assert_int_equal(store_open(&s, path, &aside, &pid), 0);
        assert_null(aside);
        all->first[all->n] = from;
        all->last[all->n++] = told;
        for (unsigned round = 0; round < all->n; round++)
                for (uint32_t i = all->first[round]; i <= all->last[round]; i++)
                        assert_there(s, i, i == all->last[round]);
        store_counts(s, &counts);
        assert_int_equal(store_counts_difference(&counts), 0);
        assert_true(counts.discovered >= told + 1 && counts.discovered <= told + 2);
        store_close(s);
        assert_true(do_command(scratch, "test \"$(sqlite3 disk/state/state.db 'PRAGMA "
                                        "integrity_check; PRAGMA foreign_key_check')\" = ok"));
        return (uint32_t)counts.discovered;
}

static void every_committed_row_is_there_after_a_power_cut(void **state) {
        const Scratch *scratch = *state;
        uint32_t next = 0;
        Told all = { 0 };

        if (!mounts_allowed())
                SKIP_BECAUSE("only root may mount");
        if (!do_command(scratch, "command -v xfs_io && command -v mkfs.ext4 && mkdir disk && "
                                 "truncate -s 64M image && mkfs.ext4 -q image && mount -o loop "
                                 "image disk"))
                SKIP_BECAUSE("no xfs_io, no mkfs.ext4 or no loop device");
        while (all.n < ROUNDS)
                next = lose_power(scratch, next, &all);
        assert_true(do_command(scratch, "umount disk"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(every_committed_row_is_there_after_a_power_cut,
                                                scratch_setup, scratch_teardown),
        };
        (void)mounts_allowed(); /* before any directory is opened: descriptors keep the mounts they
                                   were opened in */
        return cmocka_run_group_tests(tests, NULL, NULL);
}
