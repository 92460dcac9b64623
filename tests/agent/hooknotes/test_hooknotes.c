/* agent/hooknotes: notes of an earlier run, and the check of a directory that the loop sees late.
 */
#include "tests/harness/unit.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/hooknotes/hooknotes.h"
#include "agent/hooknotes/note.h"
#include "agent/hooknotes/note_checks.h"
#include "agent/store/bundle.h"
#include "lib/base/cleanup.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "tests/lib/base/scratch.h"

#define ID "0123456789abcdef0123456789abcdef"
#define CONTAINER "0123456789ab"

typedef struct Received {
        unsigned n;
        char container[64];
        Owner owner;
        bool by_mailbox;
} Received;

static void on_note(const NoteView *v, void *userdata) {
        Received *r = userdata;
        assert_string_equal(v->note->id, ID);
        assert_non_null(v->container);
        (void)snprintf(r->container, sizeof r->container, "%s", v->container);
        r->owner = v->owner;
        r->by_mailbox = v->by_mailbox;
        r->n++;
}

static void on_finished(const NoteView *v, void *userdata) {
        (void)v, (void)userdata;
}

static void store_note(Store *store) {
        HookNote hook = { .id = ID };
        char *none[] = { NULL }, container[] = CONTAINER, id[] = ID;
        _cleanup_(strbuf_done) StrBuf document = STRBUF_INIT;
        assert_int_equal(hook_note_format(&hook, none, &document), 0);
        const StoredNote stored = { .id = id,
                                    .received_usec = clock_realtime_usec(),
                                    .container = container,
                                    .document = document.text };
        assert_int_equal(store_note_add(store, &stored), 0);
}

/* Else root of a container would be the host's after a restart. */
static void a_note_of_an_earlier_run_keeps_its_container(void **state) {
        const Scratch *scratch = *state;
        sd_event *event = NULL;
        Store *store = NULL;
        HookNotes *notes = NULL;
        Received r = { .n = 0 };
        _cleanup_free_ char *mailbox = path_join(scratch->path, "mailbox");
        const Config config = { .hook = { .deadline_usec = USEC_PER_MINUTE, .mailbox = mailbox } };
        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(store_open(&store, scratch->path, NULL, NULL), 0);
        store_note(store);
        const HookNotesContext context = { .event = event,
                                           .clock = clock_system(),
                                           .store = store,
                                           .on_note = on_note,
                                           .on_finished = on_finished,
                                           .userdata = &r };
        assert_int_equal(hooknotes_new(&notes, &context, &config, -1), 0);
        while (r.n == 0)
                assert_true(sd_event_run(event, 10 * USEC_PER_SEC) > 0);
        assert_int_equal(r.n, 1);
        assert_string_equal(r.container, CONTAINER);
        assert_int_equal(note_sender(&(Owner){ .uid = r.owner.uid }, r.container, r.by_mailbox).uid,
                         UID_CONTAINER_ROOT);
        hooknotes_free(notes);
        store_close(store);
        sd_event_unref(event);
}

#define MAILS 20

static void write_mail(const Scratch *scratch, unsigned number) {
        HookNote hook = { 0 };
        char *none[] = { NULL }, name[64];
        _cleanup_(strbuf_done) StrBuf document = STRBUF_INIT;
        (void)snprintf(hook.id, sizeof hook.id, "%032x", number);
        assert_int_equal(hook_note_format(&hook, none, &document), 0);
        (void)snprintf(name, sizeof name, "mailbox/%u", number);
        assert_int_equal(scratch_write(scratch, name, document.text), 0);
}

static void count_note(const NoteView *v, void *userdata) {
        Received *r = userdata;
        (void)v;
        r->n++;
}

/* Else `--once`, which ends when nothing is left to be done, would leave some. */
static void mail_beyond_what_its_owner_may_have_is_read_before_all_is_done(void **state) {
        const Scratch *scratch = *state;
        sd_event *event = NULL;
        Store *store = NULL;
        HookNotes *notes = NULL;
        Received r = { .n = 0 };
        _cleanup_free_ char *mailbox = path_join(scratch->path, "mailbox");
        const Config config = { .hook.mailbox = mailbox };
        assert_int_equal(mkdirat(scratch->fd, "mailbox", 01733), 0);
        for (unsigned i = 1; i <= MAILS; i++)
                write_mail(scratch, i);
        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(store_open(&store, scratch->path, NULL, NULL), 0);
        const HookNotesContext context = { .event = event,
                                           .clock = clock_system(),
                                           .store = store,
                                           .on_note = count_note,
                                           .on_finished = on_finished,
                                           .userdata = &r };
        assert_int_equal(hooknotes_new(&notes, &context, &config, -1), 0);
        notes->parsing.unparsed.max_each = NOTE_MAX_BYTES / 64; /* of two or three */
        while (!hooknotes_is_idle(notes))
                assert_true(sd_event_run(event, 10 * USEC_PER_SEC) > 0);
        assert_int_equal(r.n, MAILS);
        hooknotes_free(notes);
        store_close(store);
        sd_event_unref(event);
}

static void nothing(WorkJob *job) {
        (void)job;
}

/* A loop that was blocked finds in one turn both the check's result and its expired timer: the
 * result counts. */
static void a_check_that_has_run_is_not_late(void **state) {
        (void)state;
        sd_event *event = NULL;
        Note note = { .stage = NOTE_CHECKING };
        HookNotes n = { 0 };
        CheckJob c = { .job = { .run = nothing, .done = nothing }, .owner = &n, .note = &note };
        list_init(&n.notes);
        list_init(&n.checks.hung);
        n.checks.running = &c;
        assert_int_equal(sd_event_new(&event), 0);
        assert_int_equal(worker_pool_new(&n.checks.pool, event, "check", 1, WORKER_NORMAL), 0);
        assert_int_equal(worker_pool_submit(n.checks.pool, &c.job), 0);
        while (!worker_pool_poll(&c.job))
                (void)sched_yield();
        note_checks_on_timeout(&n);
        assert_ptr_equal(n.checks.running, &c);
        assert_true(list_is_empty(&n.checks.hung));
        assert_int_equal(note.stage, NOTE_CHECKING);
        n.checks.pool = worker_pool_free(n.checks.pool);
        sd_event_unref(event);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(a_note_of_an_earlier_run_keeps_its_container,
                                                scratch_setup, scratch_teardown),
                cmocka_unit_test_setup_teardown(
                        mail_beyond_what_its_owner_may_have_is_read_before_all_is_done,
                        scratch_setup, scratch_teardown),
                cmocka_unit_test(a_check_that_has_run_is_not_late),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
