/* The glue between what happens on a node and the agreement: a real store and table of bundles, a
 * clock that stands still, and a destination in memory that answers when a test wants it to. */
#include "tests/harness/unit.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-id128.h>

#include "agent/evidence/about.h"
#include "agent/failures/failures_private.h" /* its timer goes off by hand */
#include "agent/peers/incidents_name.h"
#include "agent/peers/record.h"
#include "agent/store/store_private.h" /* what cannot be read */
#include "lib/base/cleanup.h"
#include "tests/harness/fake_clock.h"
#include "tests/lib/base/scratch.h"

#define T0 (UINT64_C(1779859295) * USEC_PER_SEC) /* 2026-05-27T05:21:35Z */
#define SEC ((uint64_t)USEC_PER_SEC)
#define RUNTIME_ID "d99e36ea74c263ca"
#define ZEROS "0000000000000000"
#define OTHER_ID "aaaaaaaaaaaaaaaa"
#define DATE_TIME "20260527-051233"
#define OTHER_TIME "20260527-051230"
#define BUNDLE "neuron-core-dump-20260527T052135-00000000000"
#define JOB "torchrun:run=7,master=10.0.0.1:41000"

/* ---- the destination `x`: agent/delivery/objects.h is implemented here, in place of objects.c
 * ---- */

#define OBJECTS_MAX 256

struct ObjectCall {
        ListLink link;
        ObjectRequest request;
        char *name;
};

static struct Bucket {
        struct {
                char *name, *data;
                int64_t modified_usec;
        } items[OBJECTS_MAX];
        size_t n;
        ListLink calls;
        const char *destination;
        bool is_shared, is_silent, is_full, is_refused, differs;
        ObjectOutcome outcome; /* of everything */
        unsigned n_calls[N_OBJECT_OPERATIONS];
        FakeClock *clock;
} bucket;

static size_t find_object(const char *name) {
        size_t i = 0;
        while (i < bucket.n && strcmp(bucket.items[i].name, name) != 0)
                i++;
        return i;
}

static const char *object(const char *name) {
        size_t i = find_object(name);
        return i < bucket.n ? bucket.items[i].data : NULL;
}

static void put_object(const char *name, const char *data) {
        size_t i = find_object(name);
        if (i == bucket.n) {
                assert_true(bucket.n < OBJECTS_MAX);
                bucket.items[bucket.n++].name = strdup(name);
        }
        free(bucket.items[i].data);
        bucket.items[i].data = strdup(data);
        bucket.items[i].modified_usec = (int64_t)bucket.clock->now_realtime_usec;
}

static size_t n_objects(const char *prefix, const char *suffix) {
        size_t n = 0;
        for (size_t i = 0; i < bucket.n; i++) {
                const char *name = bucket.items[i].name;
                size_t n_name = strlen(name), n_suffix = strlen(suffix);
                n += strncmp(name, prefix, strlen(prefix)) == 0 && n_name >= n_suffix &&
                     strcmp(name + n_name - n_suffix, suffix) == 0;
        }
        return n;
}

int object_call_new(ObjectCall **ret, Scheduler *s, const ObjectRequest *request) {
        assert_ptr_equal(s, &bucket);
        if (strcmp(request->destination, bucket.destination) != 0)
                return -ENOENT;
        assert_null(strstr(request->name, ".."));
        assert_true(request->data ? request->n > 0 : request->n == 0);
        ObjectCall *c = calloc(1, sizeof *c);
        assert_non_null(c);
        c->request = *request;
        c->name = strdup(request->name);
        list_append(&bucket.calls, &c->link);
        bucket.n_calls[request->operation]++;
        *ret = c;
        return 0;
}

ObjectCall *object_call_cancel(ObjectCall *c) {
        if (c) {
                list_remove(&c->link);
                free(c->name);
                free(c);
        }
        return NULL;
}

bool objects_are_shared(Scheduler *s, const char *destination) {
        (void)s;
        return bucket.is_shared && strcmp(destination, bucket.destination) == 0;
}

bool objects_are_refused(Scheduler *s, const char *destination) {
        (void)s, (void)destination;
        return bucket.is_refused;
}

char *objects_failure_directory(Scheduler *s, const char *destination, const char *date_time,
                                const char *cluster_id, const char *kind, const char *source,
                                bool *ret_differs) {
        (void)s, (void)destination, (void)kind, (void)source;
        *ret_differs = bucket.differs;
        return bucket.differs ? NULL : strbuf_format("%s-%s", date_time, cluster_id);
}

char *objects_bundle_directory(Scheduler *s, const char *destination, const BundleRecord *rec) {
        (void)s, (void)destination;
        return strbuf_format("%s-%s/i-1", bundle_record_date_time(rec),
                             bundle_record_cluster_id(rec));
}

static int by_name(const void *a, const void *b) {
        return strcmp(((const ObjectEntry *)a)->name, ((const ObjectEntry *)b)->name);
}

static void fill(const ObjectCall *c, ObjectEntry *entries, ObjectResult *r) {
        const ObjectRequest *q = &c->request;
        size_t i = find_object(c->name);
        r->has_clock = q->operation != OBJECT_GET;
        r->clock_offset_usec =
                (int64_t)(bucket.clock->now_realtime_usec - bucket.clock->now_boottime_usec);
        if (q->operation == OBJECT_LIST) {
                r->entries = entries;
                for (size_t k = 0; k < bucket.n; k++)
                        if (strncmp(bucket.items[k].name, c->name, strlen(c->name)) == 0)
                                entries[r->n_entries++] =
                                        (ObjectEntry){ .name = bucket.items[k].name,
                                                       .bytes = strlen(bucket.items[k].data),
                                                       .modified_usec =
                                                               bucket.items[k].modified_usec,
                                                       .is_trusted = true };
                qsort(entries, r->n_entries, sizeof *entries, by_name);
                return;
        }
        if (q->operation == OBJECT_GET && i == bucket.n)
                r->outcome = OBJECT_NOT_FOUND;
        else if (q->operation == OBJECT_CREATE && i < bucket.n)
                r->outcome = OBJECT_EXISTS;
        else if (q->operation != OBJECT_GET) {
                _cleanup_free_ char *data = strndup(q->data, q->n);
                put_object(c->name, data);
        }
        if (r->outcome != OBJECT_OK)
                return;
        i = find_object(c->name);
        r->modified_usec = bucket.items[i].modified_usec;
        r->data = bucket.items[i].data;
        r->n = strlen(r->data);
}

static void answer_first(void) {
        ObjectCall *c = CONTAINER_OF(bucket.calls.next, ObjectCall, link);
        ObjectEntry entries[OBJECTS_MAX];
        ObjectResult r = { .outcome = bucket.outcome };
        if (bucket.is_full && c->request.operation == OBJECT_PUT)
                r = (ObjectResult){ .outcome = OBJECT_UNREACHABLE, .error = "it is full" };
        else if (r.outcome == OBJECT_OK)
                fill(c, entries, &r);
        else
                r.error = "it is away";
        list_remove(&c->link);
        c->request.on_done(&r, c->request.userdata);
        free(c->name);
        free(c);
}

static void clear_bucket(void) {
        for (size_t i = 0; i < bucket.n; i++) {
                free(bucket.items[i].name);
                free(bucket.items[i].data);
        }
        bucket.n = 0;
}

/* ---- ranks, of which the test says when they end: rank_watch.h, in place of rank_watch.c ---- */

struct RankWatch {
        RankWatchOptions options;
};
static bool has_ended; /* before it can be watched */

int rank_watch_new(RankWatch **ret, const RankWatchOptions *options) {
        if (has_ended)
                return -ESRCH;
        *ret = calloc(1, sizeof **ret);
        assert_non_null(*ret);
        (*ret)->options = *options;
        return 0;
}

RankWatch *rank_watch_free(RankWatch *w) {
        free(w);
        return NULL;
}

uint64_t rank_watch_start_usec(uint64_t start_ticks) {
        return start_ticks * (USEC_PER_SEC / 100);
}

static int boot_error;
int __real_sd_id128_get_boot(sd_id128_t *ret);
int __wrap_sd_id128_get_boot(sd_id128_t *ret);
int __wrap_sd_id128_get_boot(sd_id128_t *ret) {
        return boot_error ? boot_error : __real_sd_id128_get_boot(ret);
}

/* ---- a node ---- */

typedef struct Fixture {
        void *scratch;
        sd_event *event;
        FakeClock clock;
        Config *config;
        Store *store;
        BundleTable *table;
        Failures *failures;
        unsigned n_named, n_peer_failures;
        uint64_t wait_usec;
        bool is_cut; /* the agent is killed when a bundle's end is in its row */
} Fixture;

static void on_named(void *userdata) {
        ((Fixture *)userdata)->n_named++;
}

static void on_peer_failure(const char *what, void *userdata) {
        assert_non_null(strstr(what, JOB));
        ((Fixture *)userdata)->n_peer_failures++;
}

static void on_final(Bundle *b, void *userdata) {
        const Fixture *f = userdata;
        if (!f->is_cut)
                failures_on_final(f->failures, b);
}

static void on_store_error(void *userdata) {
        (void)userdata;
        fail();
}

static Config *parse(const char *destination) {
        _cleanup_free_ char *text =
                strbuf_format("version: 1\n"
                              "agreement: {settle: 5s, window: 2m}\n"
                              "sources: [{name: dumps, kind: neuron-core-dump,"
                              " path: /nonexistent/dt-%%d-cid-%%c, destinations: [%s]}]\n"
                              "destinations: [{name: x, type: volume, path: '/v/%%d-%%c'},"
                              " {name: y, type: volume, path: '/w/%%d-%%c'}]\n",
                              destination);
        Diags diags = { 0 };
        Config *c = NULL;
        int r = config_parse(&c, "test.yaml", text, strlen(text), (char *[]){ NULL }, &diags);
        if (r != 0)
                diag_print(&diags, stderr);
        diag_done(&diags);
        assert_int_equal(r, 0);
        return c;
}

static void start(Fixture *f) {
        char path[PATH_MAX + 16];
        (void)snprintf(path, sizeof path, "%s/state", ((Scratch *)f->scratch)->path);
        assert_int_equal(store_open(&f->store, path, NULL, NULL), 0);
        assert_int_equal(
                bundle_table_new(&f->table, f->store, &f->clock.clock,
                                 &(BundleTableCallbacks){ on_final, on_store_error, NULL, f }),
                0);
        assert_int_equal(failures_new(&f->failures,
                                      &(FailuresContext){ .event = f->event,
                                                          .clock = &f->clock.clock,
                                                          .store = f->store,
                                                          .bundles = f->table,
                                                          .instance_id = "i-1",
                                                          .on_named = on_named,
                                                          .on_peer_failure = on_peer_failure,
                                                          .userdata = f },
                                      f->config),
                         0);
        failures_set_scheduler(f->failures, (Scheduler *)&bucket);
}

static void stop(Fixture *f) {
        failures_set_scheduler(f->failures, NULL);
        f->failures = failures_free(f->failures);
        assert_true(list_is_empty(&bucket.calls));
        f->table = bundle_table_free(f->table);
        f->store = store_close(f->store);
}

static void restart(Fixture *f) {
        stop(f);
        start(f);
}

static void in_scratch(Fixture *f, const char *command) {
        char text[2 * PATH_MAX];
        (void)snprintf(text, sizeof text, "cd '%s' && %s", ((Scratch *)f->scratch)->path, command);
        assert_int_equal(system(text), 0);
}

static int setup(void **state) {
        Fixture *f = calloc(1, sizeof *f);
        if (!f || scratch_setup(&f->scratch) < 0 || sd_event_new(&f->event) < 0)
                return -1;
        f->clock = FAKE_CLOCK(T0, USEC_PER_DAY);
        bucket = (struct Bucket){ .destination = "x", .is_shared = true, .clock = &f->clock };
        list_init(&bucket.calls);
        has_ended = false;
        f->config = parse("x, y");
        start(f);
        *state = f;
        return 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        void *scratch = f->scratch;
        stop(f);
        clear_bucket();
        config_free(f->config);
        sd_event_unref(f->event);
        free(f);
        return scratch_teardown(&scratch);
}

/* All that is due now. */
static void turn(Fixture *f) {
        failures_step(f->failures);
        while (!bucket.is_silent && !list_is_empty(&bucket.calls)) {
                answer_first();
                failures_step(f->failures);
        }
}

static void pass(Fixture *f, uint64_t usec) {
        turn(f);
        for (uint64_t t = 0; t < usec; t += 100 * USEC_PER_MSEC) {
                fake_clock_advance(&f->clock, MIN(usec - t, 100 * USEC_PER_MSEC));
                turn(f);
        }
}

static void add_delivery(BundleRecord *b, const char *destination) {
        b->deliveries = realloc(b->deliveries, (b->n_deliveries + 1) * sizeof *b->deliveries);
        assert_non_null(b->deliveries);
        b->deliveries[b->n_deliveries++] = (DeliveryRecord){ .destination = strdup(destination) };
}

static Bundle *add_bundle(Fixture *f, unsigned n, const char *cluster_id) {
        BundleRecord rec = { .source = strdup("dumps"),
                             .path = strbuf_format("/dumps/%u", n),
                             .state = BUNDLE_READY,
                             .complete = true,
                             .uid = 1000,
                             .oldest_mtime_usec = f->clock.now_realtime_usec + 1,
                             .date_time = DATE_TIME };
        Bundle *b = NULL;
        (void)snprintf(rec.id, sizeof rec.id, BUNDLE "%u", n);
        (void)snprintf(rec.cluster_id, sizeof rec.cluster_id, "%s", cluster_id);
        for (size_t i = 0; i < f->config->sources[0].destinations.n; i++)
                add_delivery(&rec, f->config->sources[0].destinations.items[i]);
        assert_int_equal(bundle_table_add(f->table, &rec, NULL, &b), 0);
        return b;
}

/* Of the unit of bundle 1. */
static Bundle *add_supplement(Fixture *f, unsigned n) {
        Bundle *b = NULL;
        BundleRecord rec = { .source = strdup("dumps"),
                             .path = strdup("/dumps/1"),
                             .state = BUNDLE_READY,
                             .complete = true,
                             .uid = 1000,
                             .supplement_of = BUNDLE "1" };
        (void)snprintf(rec.id, sizeof rec.id, BUNDLE "1-s%u", n);
        add_delivery(&rec, "x");
        assert_int_equal(bundle_table_add(f->table, &rec, NULL, &b), 0);
        return b;
}

static Bundle *find_bundle(Fixture *f, unsigned n, const char *cluster_id) {
        Bundle *b = add_bundle(f, n, cluster_id);
        failures_on_found(f->failures, b);
        return b;
}

static bool is_named(Fixture *f, Bundle *b) {
        f->wait_usec = 0;
        bool r = failures_name_bundle(f->failures, b, &f->wait_usec);
        assert_int_equal(r, b->rec.name.agreed[0] != '\0');
        assert_true(r || f->wait_usec > 0);
        return r;
}

static void assert_name(const Bundle *b, const char *agreed, const char *cluster_id,
                        const char *date_time, uint32_t n) {
        assert_string_equal(b->rec.name.agreed, agreed);
        assert_string_equal(b->rec.name.cluster_id, cluster_id);
        assert_string_equal(b->rec.name.date_time, date_time);
        assert_int_equal(b->rec.name.n, n);
}

/* Everywhere; it is gone afterwards. */
static void deliver(Fixture *f, Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++) {
                b->rec.deliveries[i].state = DELIVERY_DONE;
                b->rec.deliveries[i].object = strbuf_format("/v/\xff-%s.tar", b->rec.id);
        }
        b->rec.state = BUNDLE_SHIPPING;
        assert_int_equal(bundle_set_state(f->table, b, BUNDLE_DELIVERED, NULL), 0);
}

typedef struct NoteOptions {
        const char *job, *cluster_id, *date_time, *location, *path, *source;
        int64_t rank, world_size;
        pid_t pid;
        uid_t uid;
} NoteOptions;

static void hear(Fixture *f, NoteOptions o) {
        HookNote n = { .id = "00112233445566778899aabbccddeeff",
                       .cluster_id = (char *)o.cluster_id,
                       .date_time = (char *)o.date_time,
                       .error_location = (char *)o.location,
                       .error_number = -7,
                       .has_error_number = true,
                       .job = { .rank = o.rank, .world_size = o.world_size ? o.world_size : -1 } };
        (void)snprintf(n.job.key, sizeof n.job.key, "%s", o.job ? o.job : "");
        (void)strcpy(n.job.master_addr, "10.0.0.1");
        failures_on_note(f->failures, &(NoteView){ .note = &n,
                                                   .received_usec = f->clock.now_realtime_usec,
                                                   .owner = { .uid = o.uid ? o.uid : 1000 },
                                                   .pid = o.pid,
                                                   .start_ticks = o.pid ? 4711 : 0,
                                                   .source = o.source ? o.source
                                                             : o.path ? "dumps"
                                                                      : NULL,
                                                   .unit_path = o.path });
}

/* Process 100, whose dump has no cluster id, is all of the job. */
static void hear_job_of_one_node(Fixture *f) {
        hear(f, (NoteOptions){ .job = JOB,
                               .cluster_id = ZEROS,
                               .date_time = OTHER_TIME,
                               .world_size = 1,
                               .pid = 100,
                               .path = "/dumps/1" });
}

static void see_rank_of(Fixture *f, int64_t rank, uid_t uid) {
        char record[512];
        (void)snprintf(record, sizeof record,
                       "{\"pid\":%lld,\"start_ticks\":4711,\"uid\":%u,\"job\":{\"key\":\"" JOB
                       "\",\"rank\":%lld,\"world_size\":64}}",
                       (long long)rank + 100, (unsigned)uid, (long long)rank);
        failures_on_job(f->failures, record);
}

static void see_rank(Fixture *f, int64_t rank) {
        see_rank_of(f, rank, 1000);
}

static void end_rank(Fixture *f, int64_t rank) {
        FAILURE_TABLE_FOREACH_PROCESS(p, &f->failures->table)
        if (p->watch && p->claim.pid == 100 + rank) {
                p->watch->options.on_end(p->watch->options.userdata);
                return;
        }
        fail();
}

static size_t n_units(const Fixture *f) {
        size_t n = 0;
        FAILURE_TABLE_FOREACH_UNIT(u, &f->failures->table)
        n += u->path != NULL;
        return n;
}

static size_t n_items(const ListLink *all) {
        size_t n = 0;
        LIST_FOREACH (l, all)
                n++;
        return n;
}

static FailureProcess *process(const Fixture *f, size_t i) {
        FAILURE_TABLE_FOREACH_PROCESS(p, &f->failures->table)
        if (i-- == 0)
                return p;
        fail();
        return NULL;
}

static char *key_of(const char *text) {
        static char key[CLAIM_KEY_SIZE];
        assert_true(claim_key_build(text, NULL, key));
        return key;
}

static const char *decision_of(const char *text, unsigned n) {
        char name[RECORD_NAME_SIZE];
        decision_object_name(key_of(text), n, name);
        return object(name);
}

/* As another node decided it. */
static void decide_elsewhere(Fixture *f, const char *text) {
        char name[RECORD_NAME_SIZE];
        size_t n;
        Decision d = { .agreed = AGREED_STORE,
                       .n = 1,
                       .cluster_id = OTHER_ID,
                       .date_time = OTHER_TIME,
                       .created_by = "i-2",
                       .world_size = 64,
                       .settle_usec = 5 * USEC_PER_SEC };
        (void)f;
        (void)strcpy(d.key, key_of(text));
        _cleanup_free_ char *document = decision_format(&d, text, &n);
        decision_object_name(d.key, 1, name);
        put_object(name, document);
}

/* ---- claims ---- */

static void a_note_and_a_unit_make_one_claim(void **state) {
        Fixture *f = *state;
        for (unsigned i = 0; i < 2; i++) { /* whichever comes first */
                char path[32];
                Bundle *b = i ? find_bundle(f, i, RUNTIME_ID) : NULL;
                (void)snprintf(path, sizeof path, "/dumps/%u", i);
                pass(f, SEC);
                hear(f, (NoteOptions){ .job = JOB,
                                       .cluster_id = RUNTIME_ID,
                                       .date_time = DATE_TIME,
                                       .rank = i,
                                       .world_size = 64,
                                       .pid = 100 + (pid_t)i,
                                       .path = path });
                b = b ? b : find_bundle(f, i, RUNTIME_ID);
                pass(f, 5 * SEC);
                assert_int_equal(n_items(&f->failures->table.processes), i + 1);
                const Claim *c = &process(f, i)->claim;
                assert_int_equal(c->pid, 100 + i);
                assert_int_equal(c->rank, i);
                assert_int_equal(c->error_code, -7);
                assert_string_equal(c->bundle, b->rec.id);
                assert_int_equal(c->bundle_state, CLAIM_BUNDLE_PENDING);
                assert_true(is_named(f, b));
                assert_name(b, "store", RUNTIME_ID, DATE_TIME, 1);
                assert_string_equal(b->rec.name.key, key_of(JOB));
        }
        assert_int_equal(bucket.n_calls[OBJECT_CREATE], 1);
        assert_true(f->n_named > 0);
        assert_int_equal(failures_n_named(f->failures, AGREED_STORE), 2);
        assert_int_equal(f->failures->table.n_dropped, 0);
}

static void a_unit_without_a_note_is_claimed_after_2_s_or_when_it_is_ready(void **state) {
        Fixture *f = *state;
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        pass(f, 19 * SEC / 10);
        assert_int_equal(n_items(&f->failures->table.processes), 0);
        pass(f, SEC / 10);
        assert_int_equal(n_items(&f->failures->table.processes), 1);
        assert_true(process(f, 0)->claim.pid > 1u << 30); /* above all pids */
        assert_string_equal(process(f, 0)->claim.bundle, b->rec.id);
        Bundle *ready = find_bundle(f, 2, RUNTIME_ID);
        (void)is_named(f, ready);
        assert_int_equal(n_items(&f->failures->table.processes), 2);
        pass(f, 5 * SEC);
        assert_true(is_named(f, b) && is_named(f, ready));
        assert_name(b, "store", RUNTIME_ID, DATE_TIME, 1);
        assert_name(ready, "store", RUNTIME_ID, DATE_TIME, 1);
        assert_string_equal(b->rec.name.key, key_of(RUNTIME_ID));
}

static void a_unit_that_went_is_not_claimed(void **state) {
        Fixture *f = *state;
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        assert_int_equal(bundle_set_state(f->table, b, BUNDLE_VANISHED, NULL), 0);
        pass(f, 3 * SEC);
        assert_int_equal(n_items(&f->failures->table.processes), 0);
        assert_int_equal(n_units(f), 0);
}

static void a_rank_that_failed_is_the_process_of_its_note(void **state) {
        Fixture *f = *state;
        see_rank(f, 3);
        assert_int_equal(process(f, 0)->claim.state, CLAIM_ALIVE);
        hear(f, (NoteOptions){ .job = JOB, .rank = 3, .world_size = 64, .path = "/dumps/1" });
        see_rank(f, 3);
        end_rank(f, 3); /* what failed stays so */
        assert_int_equal(n_items(&f->failures->table.processes), 1);
        assert_int_equal(process(f, 0)->claim.state, CLAIM_FAILED);
        assert_int_equal(process(f, 0)->claim.pid, 103);
}

static void a_process_keeps_its_job_and_rank_and_a_note_of_another_joins_it(void **state) {
        Fixture *f = *state;
        hear(f, (NoteOptions){ .job = JOB, .pid = 100, .path = "/dumps/1" });
        hear(f, (NoteOptions){ .job = "another", .rank = 5, .pid = 100, .path = "/dumps/2" });
        assert_int_equal(n_items(&f->failures->table.processes), 1);
        assert_string_equal(process(f, 0)->key->key, key_of(JOB));
        assert_int_equal(process(f, 0)->claim.rank, 0);
        assert_string_equal(process(f, 0)->unit->path, "/dumps/2");
        assert_null(failure_table_find_key(&f->failures->table, key_of("another")));
}

/* Two directories of one process: a unit never points at a process that has gone. */
static void a_process_whose_second_note_has_another_directory_leaves_the_first_one(void **state) {
        Fixture *f = *state;
        bucket.is_shared = false;
        hear(f, (NoteOptions){ .job = JOB, .world_size = 64, .pid = 100, .path = "/dumps/1" });
        hear(f, (NoteOptions){ .job = JOB, .world_size = 64, .pid = 100, .path = "/dumps/2" });
        assert_string_equal(process(f, 0)->unit->path, "/dumps/2");
        Bundle *b = find_bundle(f, 2, RUNTIME_ID);
        assert_true(is_named(f, b));
        deliver(f, b);
        fake_clock_advance(&f->clock, 2 * USEC_PER_HOUR);
        turn(f);
        assert_int_equal(n_items(&f->failures->table.processes), 0);
        assert_int_equal(n_units(f), 0);
        fake_clock_advance(&f->clock, USEC_PER_MINUTE);
        turn(f);
}

/* ---- names ---- */

static void a_name_is_frozen_and_there_after_a_restart(void **state) {
        Fixture *f = *state;
        decide_elsewhere(f, JOB);
        for (unsigned i = 1; i <= 2; i++) {
                char path[32];
                (void)snprintf(path, sizeof path, "/dumps/%u", i);
                hear(f, (NoteOptions){ .job = JOB,
                                       .cluster_id = i == 1 ? RUNTIME_ID : NULL,
                                       .rank = i,
                                       .world_size = 64,
                                       .pid = 100 + (pid_t)i,
                                       .path = path });
                find_bundle(f, i, i == 1 ? RUNTIME_ID : ZEROS);
        }
        pass(f, 8 * SEC);
        Bundle *b = bundle_table_find(f->table, BUNDLE "1");
        assert_true(is_named(f, b));
        assert_name(b, "store", OTHER_ID, OTHER_TIME, 1);
        bundle_save(f->table, b); /* as its first delivery does */

        bucket.is_silent = true;
        restart(f);
        assert_int_equal(n_items(&f->failures->table.processes), 2);
        b = bundle_table_find(f->table, BUNDLE "1");
        failures_on_found(f->failures, b);
        assert_true(is_named(f, b));
        assert_name(b, "store", OTHER_ID, OTHER_TIME, 1);
        b = bundle_table_find(f->table, BUNDLE "2");
        failures_on_found(f->failures, b);
        assert_true(is_named(f, b)); /* without asking anybody */
        assert_name(b, "store", OTHER_ID, OTHER_TIME, 1);
        pass(f, 3 * SEC);
        assert_int_equal(n_items(&f->failures->table.processes), 2);
        assert_int_equal(bucket.n_calls[OBJECT_CREATE], 0);
}

static void a_claim_that_had_no_failure_yet_is_asked_for_again_after_a_restart(void **state) {
        Fixture *f = *state;
        bucket.is_silent = true;
        hear(f, (NoteOptions){ .job = JOB, .world_size = 64, .pid = 100, .path = "/dumps/1" });
        find_bundle(f, 1, RUNTIME_ID);
        pass(f, SEC);
        restart(f);
        bucket.is_silent = false;
        Bundle *b = bundle_table_find(f->table, BUNDLE "1");
        failures_on_found(f->failures, b);
        pass(f, 8 * SEC);
        assert_int_equal(n_items(&f->failures->table.processes), 1);
        assert_int_equal(process(f, 0)->claim.pid, 100);
        assert_true(is_named(f, b));
        assert_int_equal(b->rec.name.n, 1);
        assert_true(b->rec.name.derived);
        assert_int_equal(b->rec.name.key[0], key_of(JOB)[0]);
}

static void ranks_that_cannot_be_are_not_known(void **state) {
        Fixture *f = *state;
        const int64_t impossible[] = { INT64_MAX, 0, CLAIM_RANKS_MAX + 1 };
        for (int i = 0; i < 3; i++)
                hear(f, (NoteOptions){ .job = JOB,
                                       .cluster_id = RUNTIME_ID,
                                       .date_time = DATE_TIME,
                                       .rank = i == 1 ? CLAIM_RANKS_MAX : impossible[i],
                                       .world_size = impossible[i],
                                       .pid = 100 + i });
        pass(f, SEC);
        const char *decision = decision_of(JOB, 1);
        assert_non_null(decision);
        assert_non_null(strstr(decision, "\"world_size\":null"));
        restart(f);
        assert_int_equal(n_items(&f->failures->table.processes), 3);
        pass(f, 60 * SEC);
        const char *incident = object(DATE_TIME "-" RUNTIME_ID "/incident.json");
        assert_non_null(incident);
        assert_non_null(strstr(incident, "\"pid\":102"));
}

static void what_is_stored_and_makes_no_sense_is_left_out(void **state) {
        Fixture *f = *state;
        static const char *const documents[] = { "", "{", "[]", "{\"schema\":1}", "\xff" };
        for (size_t i = 0; i < ELEMENTSOF(documents); i++) {
                char name[64];
                (void)snprintf(name, sizeof name, "%s/%zu", key_of(JOB), i);
                StoredFailure s = { .name = i % 2 ? name : name + 1,
                                    .key = i == 2 ? "../.." : key_of(JOB),
                                    .n = (uint32_t)i,
                                    .time_usec = i == 3 ? UINT64_C(1) << 62 : T0,
                                    .document = documents[i] };
                assert_int_equal(store_failure_put(f->store, &s), 0);
        }
        restart(f);
        assert_int_equal(n_items(&f->failures->table.processes), 0);
}

static void a_rank_s_bundle_is_the_one_that_has_its_files(void **state) {
        Fixture *f = *state;
        for (pid_t pid = 100; pid < 103; pid++)
                hear(f, (NoteOptions){
                                .job = JOB, .rank = pid - 100, .pid = pid, .path = "/dumps/1" });
        Bundle *base = find_bundle(f, 1, RUNTIME_ID);
        named_pids_add(&base->pids, 100);
        pass(f, 8 * SEC);
        deliver(f, base);
        assert_int_equal(process(f, 0)->claim.bundle_state, CLAIM_BUNDLE_DELIVERED);
        for (unsigned i = 1; i < 3; i++) {
                assert_int_equal(process(f, i)->claim.bundle_state, CLAIM_BUNDLE_PENDING);
                assert_string_equal(process(f, i)->claim.bundle, "");
        }
        for (unsigned i = 1; i < 3; i++) {
                Bundle *s = add_supplement(f, i);
                failures_on_found(f->failures, s);
                named_pids_add(&s->pids, 100 + (int64_t)i);
                assert_true(is_named(f, s));
                deliver(f, s);
                assert_int_equal(process(f, i)->claim.bundle_state, CLAIM_BUNDLE_DELIVERED);
                assert_string_not_equal(process(f, i)->claim.bundle, BUNDLE "1");
        }
        assert_string_equal(process(f, 0)->claim.bundle, BUNDLE "1");
        assert_int_equal(n_units(f), 0);
}

static void what_was_delivered_before_a_kill_is_so_after_the_restart(void **state) {
        Fixture *f = *state;
        hear(f, (NoteOptions){ .job = JOB, .pid = 100, .path = "/dumps/1" });
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        pass(f, 8 * SEC);
        f->is_cut = true;
        deliver(f, b);
        assert_int_equal(process(f, 0)->claim.bundle_state, CLAIM_BUNDLE_PENDING);
        f->is_cut = false;
        restart(f);
        assert_int_equal(process(f, 0)->claim.bundle_state, CLAIM_BUNDLE_DELIVERED);
}

static ClaimBundle claimed_state(const Fixture *f, const char *bundle) {
        FAILURE_TABLE_FOREACH_PROCESS(p, &f->failures->table)
        if (strcmp(p->claim.bundle, bundle) == 0)
                return p->claim.bundle_state;
        fail();
        return CLAIM_BUNDLE_NONE;
}

/* Its name is in its row, so nobody asks for one again. */
static void what_a_restart_or_quarantine_interrupts_is_delivered_for_its_claim_too(void **state) {
        Fixture *f = *state;
        Bundle *b = find_bundle(f, 1, RUNTIME_ID), *retried = find_bundle(f, 2, RUNTIME_ID);
        pass(f, 8 * SEC);
        assert_true(is_named(f, b) && is_named(f, retried));
        bundle_save(f->table, b);
        assert_int_equal(bundle_set_state(f->table, retried, BUNDLE_SHIPPING, NULL), 0);
        assert_int_equal(bundle_set_state(f->table, retried, BUNDLE_QUARANTINED, NULL), 0);
        assert_int_equal(bundle_table_revive(f->table, BUNDLE "2", NULL, &retried), 0);
        deliver(f, retried);
        assert_int_equal(claimed_state(f, BUNDLE "2"), CLAIM_BUNDLE_DELIVERED);
        restart(f);
        assert_int_equal(claimed_state(f, BUNDLE "1"), CLAIM_BUNDLE_PENDING);
        deliver(f, bundle_table_find(f->table, BUNDLE "1"));
        assert_int_equal(claimed_state(f, BUNDLE "1"), CLAIM_BUNDLE_DELIVERED);
        assert_int_equal(n_units(f), 0);
}

static void a_supplement_is_named_as_its_base(void **state) {
        Fixture *f = *state;
        Bundle *base = find_bundle(f, 1, RUNTIME_ID), *supplement = add_bundle(f, 2, ZEROS);
        (void)strcpy(supplement->rec.supplement_of, base->rec.id);
        failures_on_found(f->failures, supplement);
        decide_elsewhere(f, RUNTIME_ID);
        pass(f, 8 * SEC);
        assert_int_equal(n_items(&f->failures->table.processes), 1); /* it claims nothing */
        assert_true(is_named(f, base));
        bundle_save(f->table, base);
        assert_true(is_named(f, supplement));
        assert_memory_equal(&supplement->rec.name, &base->rec.name, sizeof(FailureName));
        assert_name(supplement, "store", OTHER_ID, OTHER_TIME, 1);
        Bundle *orphan = add_bundle(f, 3, ZEROS);
        (void)strcpy(orphan->rec.supplement_of, "neuron-core-dump-20200101T000000-000000000000");
        assert_true(is_named(f, orphan));
        assert_name(orphan, "alone", "", "", 0);
}

/* What the agent itself has made about a dump or about processes. */
static Bundle *add_own(Fixture *f, unsigned n, const char *subject, uint32_t pid) {
        _cleanup_(about_done) About about = { 0 };
        BundleRecord rec = { .source = strdup("agent"),
                             .kind = SOURCE_SNAPSHOT,
                             .path = strbuf_format("/state/evidence/snapshot-%u", n),
                             .state = BUNDLE_READY,
                             .complete = true,
                             .changed_usec = f->clock.now_realtime_usec,
                             .oldest_mtime_usec = f->clock.now_realtime_usec };
        Bundle *b = NULL;
        (void)snprintf(rec.id, sizeof rec.id, "snapshot-20260527T051233-00000000000%u", n);
        (void)snprintf(rec.subject, sizeof rec.subject, "%s", subject);
        (void)about_add_related(&about, subject);
        (void)about_add_process(&about, (pid_t)pid, 4711);
        rec.about = about_format(&about);
        add_delivery(&rec, "x");
        assert_int_equal(bundle_table_add(f->table, &rec, NULL, &b), 0);
        return b;
}

static void what_the_agent_makes_about_a_dump_has_its_name_and_place(void **state) {
        Fixture *f = *state;
        Bundle *dump = find_bundle(f, 1, RUNTIME_ID), *own = add_own(f, 1, dump->rec.id, 0);
        failures_on_found(f->failures, own);
        decide_elsewhere(f, RUNTIME_ID);
        dump->rec.s3_prefix = strdup("s3://b/p");
        pass(f, 8 * SEC);
        assert_int_equal(n_items(&f->failures->table.processes), 1); /* it claims nothing */
        assert_true(is_named(f, own));
        assert_name(own, "store", OTHER_ID, OTHER_TIME, 1);
        assert_memory_equal(&own->rec.name, &dump->rec.name, sizeof(FailureName));
        assert_string_equal(own->rec.date_time, dump->rec.date_time);
        assert_string_equal(own->rec.cluster_id, dump->rec.cluster_id);
        assert_string_equal(own->rec.s3_prefix, "s3://b/p");
        assert_true(own->rec.oldest_mtime_usec == dump->rec.oldest_mtime_usec);
}

static void without_a_dump_it_has_the_name_of_its_process_s_failure(void **state) {
        Fixture *f = *state;
        hear(f, (NoteOptions){ .job = JOB, .rank = 1, .world_size = 64, .pid = 101 });
        decide_elsewhere(f, JOB);
        pass(f, 8 * SEC);
        Bundle *own = add_own(f, 1, "", 101), *other = add_own(f, 2, "", 102);
        assert_true(is_named(f, own));
        assert_name(own, "store", OTHER_ID, OTHER_TIME, 1);
        assert_true(bundle_record_has_failure(&own->rec));
        assert_true(is_named(f, other));
        assert_name(other, "alone", "", "", 0);
        assert_false(bundle_record_has_failure(&other->rec));
}

static void another_user_s_process_does_not_name_it(void **state) {
        Fixture *f = *state;
        hear(f, (NoteOptions){ .job = JOB, .rank = 1, .world_size = 64, .pid = 101 });
        decide_elsewhere(f, JOB);
        pass(f, 8 * SEC);
        Bundle *own = add_own(f, 1, "", 101);
        own->rec.uid = 4242;
        assert_true(is_named(f, own));
        assert_name(own, "alone", "", "", 0);
}

static void it_waits_for_its_dump_but_not_for_ever(void **state) {
        Fixture *f = *state;
        Bundle *dump = find_bundle(f, 1, RUNTIME_ID), *own = add_own(f, 1, dump->rec.id, 0);
        dump->rec.state = BUNDLE_SETTLING;
        assert_false(is_named(f, own));
        fake_clock_advance(&f->clock, f->config->agreement.settle_usec + 16 * SEC);
        assert_true(is_named(f, own));
        assert_name(own, "alone", "", "", 0);
        assert_string_equal(own->rec.cluster_id, RUNTIME_ID);
        assert_true(bundle_record_has_failure(&own->rec));
}

static void about_nothing_that_is_known_it_has_no_failure(void **state) {
        Fixture *f = *state;
        Bundle *own = add_own(f, 1, "neuron-core-dump-20200101T000000-000000000000", 0);
        assert_true(is_named(f, own));
        assert_name(own, "alone", "", "", 0);
        assert_false(bundle_record_has_failure(&own->rec));
}

static void a_job_on_one_node_waits_for_nobody(void **state) {
        Fixture *f = *state;
        bucket.is_silent = true;
        hear_job_of_one_node(f);
        Bundle *b = find_bundle(f, 1, ZEROS);
        assert_true(is_named(f, b));
        assert_string_equal(b->rec.name.agreed, "alone");
        assert_true(b->rec.name.derived);
        assert_string_equal(b->rec.name.date_time, OTHER_TIME);
        assert_true(cluster_id_is_set(b->rec.name.cluster_id));
        bucket.is_silent = false; /* it gets a number, and keeps its name */
        pass(f, 5 * SEC);
        const char *document = decision_of(JOB, 1);
        assert_non_null(document);
        assert_non_null(strstr(document, b->rec.name.cluster_id));
}

static void without_an_arbiter_it_is_named_alone_at_once(void **state) {
        Fixture *f = *state;
        bucket.is_shared = false;
        hear(f, (NoteOptions){ .job = JOB, .world_size = 64, .pid = 100, .path = "/dumps/1" });
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        assert_true(is_named(f, b));
        assert_name(b, "alone", "", "", 0);
        assert_string_equal(b->rec.name.key, "");
        assert_int_equal(failures_n_named(f->failures, AGREED_ALONE), 1);
        pass(f, 60 * SEC);
        assert_int_equal(bucket.n_calls[OBJECT_LIST], 0);
}

static void an_arbiter_that_is_unable_is_none(void **state) {
        Fixture *f = *state;
        bucket.outcome = OBJECT_UNABLE;
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        assert_false(is_named(f, b));
        pass(f, SEC);
        assert_true(is_named(f, b));
        assert_name(b, "alone", "", "", 0);
}

/* What a reload brings may be able. */
static void after_a_reload_it_is_asked_again(void **state) {
        Fixture *f = *state;
        bucket.outcome = OBJECT_UNABLE;
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        assert_false(is_named(f, b));
        pass(f, SEC);
        failures_set_scheduler(f->failures, NULL);
        bucket.outcome = OBJECT_OK;
        failures_rebind(f->failures, f->config);
        failures_set_scheduler(f->failures, (Scheduler *)&bucket);
        pass(f, 8 * SEC);
        assert_true(is_named(f, b));
        assert_name(b, "store", RUNTIME_ID, DATE_TIME, 1);
}

/* With y first, which is none, nothing more is asked at x. */
static void a_reload_may_take_the_arbiter_away(void **state) {
        Fixture *f = *state;
        bucket.is_silent = true;
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        assert_false(is_named(f, b));
        turn(f);
        assert_int_equal(bucket.n_calls[OBJECT_LIST], 1);
        failures_set_scheduler(f->failures, NULL);
        assert_true(list_is_empty(&bucket.calls));
        pass(f, SEC);
        Config *c = parse("y, x");
        failures_rebind(f->failures, c);
        config_free(f->config);
        f->config = c;
        failures_set_scheduler(f->failures, (Scheduler *)&bucket);
        pass(f, 60 * SEC);
        assert_int_equal(bucket.n_calls[OBJECT_LIST], 1);
        assert_true(is_named(f, b));
        assert_name(b, "alone", "", "", 0);
}

/* The ranks of a job are seen before a hook names the source of its dumps. */
static void the_source_of_a_note_names_the_arbiter_also_of_ranks_that_were_seen(void **state) {
        Fixture *f = *state;
        Config *c = parse("x], settle: 1s}, {name: others, kind: neuron-core-dump,"
                          " path: /absent/dt-%d-cid-%c, destinations: [y");
        failures_rebind(f->failures, c);
        config_free(f->config);
        f->config = c;
        failures_set_scheduler(f->failures, (Scheduler *)&bucket);
        see_rank(f, 1);
        assert_string_equal(arbiter_state(process(f, 0)->key->arbiter)->destination, "x");
        bucket.destination = "y"; /* both are shared, and from now on this one answers */
        hear(f, (NoteOptions){ .job = JOB,
                               .cluster_id = RUNTIME_ID,
                               .world_size = 64,
                               .pid = 100,
                               .source = "others",
                               .path = "/others/1" });
        assert_string_equal(arbiter_state(process(f, 0)->key->arbiter)->destination, "y");
        pass(f, 8 * SEC);
        assert_non_null(decision_of(JOB, 1));
}

/* ---- waiting ---- */

static void assert_waits(Fixture *f, Bundle *b, uint64_t usec) {
        assert_false(is_named(f, b));
        assert_int_equal(f->wait_usec, usec);
        pass(f, usec - SEC / 10);
        assert_false(is_named(f, b));
        _cleanup_free_ char *why = failures_explain(f->failures, &b->rec);
        assert_non_null(strstr(why, "have agreed"));
        pass(f, SEC / 10);
}

static void waiting_ends_15_s_beyond_settling(void **state) {
        Fixture *f = *state;
        bucket.is_silent = true;
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        pass(f, 30 * SEC); /* before it is ready it does not wait */
        assert_waits(f, b, 20 * SEC);
        assert_true(is_named(f, b));
        assert_name(b, "alone", "", "", 0);
        assert_null(failures_explain(f->failures, &b->rec));
}

static void in_a_hurry_waiting_ends_after_2_s(void **state) {
        Fixture *f = *state;
        bucket.is_silent = true;
        failures_hurry(f->failures, true);
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        assert_waits(f, b, 2 * SEC);
        assert_true(is_named(f, b));
        assert_name(b, "alone", "", "", 0);
}

static void an_arbiter_that_is_away_is_waited_for_when_nobody_else_takes_it(void **state) {
        Fixture *f = *state;
        bucket.outcome = OBJECT_UNREACHABLE;
        Bundle *b = find_bundle(f, 1, RUNTIME_ID), *of_two = find_bundle(f, 2, RUNTIME_ID);
        b->rec.n_deliveries = 1;
        delivery_record_done(&b->rec.deliveries[1]);
        assert_false(is_named(f, b) || is_named(f, of_two));
        pass(f, 60 * SEC);
        assert_true(is_named(f, of_two));
        assert_false(is_named(f, b));
        assert_int_equal(f->wait_usec, SEC);
        _cleanup_free_ char *why = failures_explain(f->failures, &b->rec);
        assert_non_null(strstr(why, "the last error: it is away"));
        bucket.outcome = OBJECT_OK;
        pass(f, 40 * SEC);
        assert_true(is_named(f, b));
        assert_name(b, "store", RUNTIME_ID, DATE_TIME, 1);
}

/* The listing has succeeded, and the decision that it shows is not read yet. */
static void between_two_questions_to_an_arbiter_that_is_back_it_waits_too(void **state) {
        Fixture *f = *state;
        bucket.outcome = OBJECT_UNREACHABLE;
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        b->rec.n_deliveries = 1;
        delivery_record_done(&b->rec.deliveries[1]);
        assert_false(is_named(f, b));
        pass(f, 60 * SEC);
        assert_false(is_named(f, b));
        decide_elsewhere(f, RUNTIME_ID);
        bucket.outcome = OBJECT_OK;
        bucket.is_silent = true; /* the test answers, one question at a time */
        for (unsigned i = 0; i < 60 && !b->rec.name.agreed[0]; i++) {
                pass(f, SEC);
                if (!list_is_empty(&bucket.calls))
                        answer_first();
                (void)is_named(f, b);
        }
        assert_name(b, "store", OTHER_ID, OTHER_TIME, 1);
        bucket.is_silent = false;
}

static void nor_on_a_store_that_accepts_bundles_and_fails_otherwise(void **state) {
        Fixture *f = *state;
        bucket.outcome = OBJECT_UNREACHABLE;
        bucket.is_refused = true;
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        b->rec.n_deliveries = 1;
        delivery_record_done(&b->rec.deliveries[1]);
        assert_waits(f, b, 20 * SEC);
        assert_true(is_named(f, b));
        assert_name(b, "alone", "", "", 0);
}

static void in_a_hurry_not_even_then(void **state) {
        Fixture *f = *state;
        bucket.is_silent = true;
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        b->rec.n_deliveries = 1;
        delivery_record_done(&b->rec.deliveries[1]);
        assert_false(is_named(f, b));
        pass(f, 60 * SEC);
        assert_false(is_named(f, b));
        failures_hurry(f->failures, true);
        assert_true(is_named(f, b));
}

static void it_is_idle_when_all_is_written_or_after_5_s(void **state) {
        Fixture *f = *state;
        failures_hurry(f->failures, true);
        bucket.is_silent = true;
        assert_true(failures_is_idle(f->failures));
        (void)is_named(f, find_bundle(f, 1, RUNTIME_ID));
        turn(f);
        assert_false(failures_is_idle(f->failures));
        pass(f, 5 * SEC);
        assert_false(failures_is_idle(f->failures));
        pass(f, SEC / 10);
        assert_true(failures_is_idle(f->failures));
        bucket.is_silent = false;
        for (unsigned i = 0; i < 60 && n_objects(".incidents/", "-i-1.json") == 0; i++) {
                (void)failures_is_idle(f->failures);
                pass(f, SEC / 10);
        }
        assert_int_equal(n_objects(".incidents/", "-i-1.json"), 1);
}

/* ---- what is written ---- */

static void put_record(const char *instance_id, uint32_t n_claims, unsigned n_bundles) {
        _cleanup_(record_done) Record r = { .n = 1, .revision = 1 };
        char name[RECORD_NAME_SIZE];
        Claim c = { .rank = -1,
                    .world_size = -1,
                    .revision = 1,
                    .state = CLAIM_ALIVE,
                    .started_usec = INT64_MIN,
                    .event_usec = (int64_t)T0 };
        size_t n;
        (void)strcpy(r.key, key_of(JOB));
        (void)strcpy(r.instance_id, instance_id);
        (void)strcpy(c.instance_id, instance_id);
        (void)snprintf(c.boot_id, sizeof c.boot_id, "%032x",
                       (unsigned)instance_id[2] << 8 | (unsigned)instance_id[3]);
        for (c.pid = 1; c.pid <= n_claims; c.pid++)
                assert_int_equal(claim_set_add(&r.claims, &c), 1);
        for (unsigned i = 0; i < n_bundles; i++) {
                char id[BUNDLE_ID_SIZE];
                (void)snprintf(id, sizeof id, "snapshot-20260527T051259-%012x", i);
                assert_int_equal(node_bundles_add(&r.bundles, id, BUNDLE_DELIVERED, NULL), 0);
        }
        record_object_name(r.key, 1, (int64_t)T0, instance_id, name);
        _cleanup_free_ char *document = record_format(&r, &n);
        put_object(name, document);
}

static void records_and_incident_json_are_written_and_nonsense_beside_them_is_left_out(void **s) {
        Fixture *f = *s;
        char name[RECORD_NAME_SIZE];
        hear(f, (NoteOptions){ .job = JOB,
                               .cluster_id = RUNTIME_ID,
                               .date_time = DATE_TIME,
                               .location = "a\x01\xff\"b",
                               .world_size = 2,
                               .pid = 100,
                               .path = "/dumps/1" });
        pass(f, SEC);
        record_object_name(key_of(JOB), 1, (int64_t)T0, "i-3", name);
        put_object(name, "{\"schema\": \"\xff");
        put_record("i-4", 1, 0);
        put_record("i-5", 1, 0); /* as one of another node */
        strstr(bucket.items[bucket.n - 1].name, "-i-5.json")[3] = '6';
        pass(f, 60 * SEC);
        const char *incident = object(DATE_TIME "-" RUNTIME_ID "/incident.json");
        assert_non_null(incident);
        assert_non_null(strstr(incident, "\"i-1\""));
        assert_null(strstr(incident, "\"i-3\""));
        assert_null(strstr(incident, "\"i-5\""));
        assert_non_null(strstr(incident, "\"i-4\""));
        assert_non_null(strstr(incident, "a??\\\"b"));
        assert_int_equal(n_objects(".incidents/", "-i-1.json"), 1);
        json_decref(json_loads(incident, 0, NULL));
}

static void of_many_records_some_are_folded(void **state) {
        Fixture *f = *state;
        hear(f, (NoteOptions){ .job = JOB,
                               .cluster_id = RUNTIME_ID,
                               .date_time = DATE_TIME,
                               .world_size = 64,
                               .pid = 100 });
        pass(f, SEC);
        for (char id[] = "i-a"; id[2] <= 'h'; id[2]++)
                put_record(id, CLAIMS_MAX, 0);
        put_record("i-z", 1, 0);
        pass(f, 60 * SEC);
        const char *incident = object(DATE_TIME "-" RUNTIME_ID "/incident.json");
        assert_non_null(incident);
        json_t *v = json_loads(incident, 0, NULL);
        assert_true(json_is_true(json_object_get(v, "cut")));
        _cleanup_free_ char *nodes = json_dumps(json_object_get(v, "nodes"), JSON_COMPACT);
        json_decref(v);
        assert_non_null(strstr(nodes, "i-a"));
        assert_non_null(strstr(nodes, "i-h"));
        assert_null(strstr(nodes, "i-z"));
}

static void however_many_bundles_records_have_all_claims_are_folded(void **state) {
        Fixture *f = *state;
        hear(f, (NoteOptions){ .job = JOB,
                               .cluster_id = RUNTIME_ID,
                               .date_time = DATE_TIME,
                               .world_size = 64,
                               .pid = 100 });
        pass(f, SEC);
        for (unsigned i = 0; i < 140; i++)
                put_record((char[]){ 'i', '-', (char)('a' + i / 26), (char)('a' + i % 26), '\0' },
                           1, NODE_BUNDLES_MAX);
        pass(f, 60 * SEC);
        const char *incident = object(DATE_TIME "-" RUNTIME_ID "/incident.json");
        assert_non_null(incident);
        json_t *v = json_loads(incident, 0, NULL), *nodes = json_object_get(v, "nodes");
        assert_null(json_object_get(v, "cut"));
        assert_int_equal(json_integer_value(json_object_get(v, "world_size")), 64);
        assert_int_equal(json_array_size(nodes), 141);
        for (size_t i = 1; i < 141; i++) {
                const json_t *node = json_array_get(nodes, i);
                assert_int_equal(json_array_size(json_object_get(node, "bundles")) +
                                         (size_t)json_integer_value(
                                                 json_object_get(node, "bundles_left_out")),
                                 NODE_BUNDLES_MAX);
        }
        json_decref(v);
}

static size_t n_waiting(void) {
        size_t n = 0;
        LIST_FOREACH_ITEM (ObjectCall, c, link, &bucket.calls)
                n += c->request.operation == OBJECT_GET;
        return n;
}

static void some_records_are_read_at_a_time_and_an_error_ends_all(void **state) {
        Fixture *f = *state;
        size_t most = 0;
        hear(f, (NoteOptions){ .job = JOB,
                               .cluster_id = RUNTIME_ID,
                               .date_time = DATE_TIME,
                               .world_size = 64,
                               .pid = 100 });
        pass(f, SEC);
        for (char id[] = "i-a"; id[2] <= 'z'; id[2]++)
                put_record(id, 1, 0);
        bucket.is_silent = true;
        for (unsigned i = 0; i < 400 && !object(DATE_TIME "-" RUNTIME_ID "/incident.json"); i++) {
                pass(f, SEC / 10);
                most = MAX(most, n_waiting());
                bucket.outcome = i == 25 ? OBJECT_UNREACHABLE : OBJECT_OK;
                if (!list_is_empty(&bucket.calls))
                        answer_first();
                if (i == 25)
                        assert_int_equal(n_waiting(), 0);
        }
        assert_int_equal(most, 8);
        const char *incident = object(DATE_TIME "-" RUNTIME_ID "/incident.json");
        assert_non_null(incident);
        assert_non_null(strstr(incident, "\"i-a\""));
        assert_non_null(strstr(incident, "\"i-z\""));
}

static void without_the_stores_clock_nothing_is_written(void **state) {
        Fixture *f = *state;
        hear(f, (NoteOptions){ .job = JOB,
                               .cluster_id = RUNTIME_ID,
                               .date_time = DATE_TIME,
                               .world_size = 64,
                               .pid = 100 });
        pass(f, 8 * SEC);
        restart(f);
        unsigned n_puts = bucket.n_calls[OBJECT_PUT];
        bucket.outcome = OBJECT_INVALID; /* as a volume with more names than may be listed */
        pass(f, 8 * SEC);
        assert_int_equal(bucket.n_calls[OBJECT_PUT], n_puts);
}

/* Else each listing before it would have it logged again. */
static void an_error_lasts_until_a_task_has_succeeded(void **state) {
        Fixture *f = *state;
        hear(f, (NoteOptions){ .job = JOB,
                               .cluster_id = RUNTIME_ID,
                               .date_time = DATE_TIME,
                               .world_size = 64,
                               .pid = 100 });
        turn(f);
        const FailureKey *k = process(f, 0)->key;
        pass(f, SEC);
        bucket.is_full = true;
        pass(f, 60 * SEC);
        unsigned n_lists = bucket.n_calls[OBJECT_LIST];
        bucket.is_silent = true;
        pass(f, 60 * SEC);
        assert_int_equal(bucket.n_calls[OBJECT_LIST], n_lists + 1);
        answer_first(); /* it lists; then it cannot write */
        assert_string_equal(arbiter_state(k->arbiter)->error, "it is full");
        bucket.is_full = bucket.is_silent = false;
        pass(f, 60 * SEC);
        assert_null(arbiter_state(k->arbiter)->error);
}

static void where_prefixes_differ_by_node_there_is_no_incident_json(void **state) {
        Fixture *f = *state;
        bucket.differs = true;
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        pass(f, 60 * SEC);
        assert_true(is_named(f, b));
        assert_int_equal(n_objects(".incidents/", "-i-1.json"), 1);
        assert_int_equal(n_objects("", "/incident.json"), 0);
}

static void a_job_that_failed_elsewhere_is_reported_once_where_ranks_live(void **state) {
        Fixture *f = *state;
        for (unsigned i = 0; i < 2; i++) {
                see_rank(f, 3);
                see_rank(f, 4);
                see_rank(f, 4);
                decide_elsewhere(f, JOB);
                end_rank(f, 3);
                if (i == 0)
                        end_rank(f, 4);
                pass(f, 20 * SEC); /* it looks whether its job has failed */
                assert_true(process(f, 0)->is_placed);
                assert_int_equal(f->n_peer_failures, i);
                pass(f, 20 * SEC);
                assert_int_equal(f->n_peer_failures, i);
                assert_int_equal(bucket.n_calls[OBJECT_CREATE], 0);
                restart(f);
                see_rank(f, 4);
                pass(f, SEC);
                assert_int_equal(f->n_peer_failures, i); /* once */
                stop(f);
                in_scratch(f, "rm -r state");
                start(f);
        }
}

static void a_unit_without_a_note_belongs_to_the_only_job_of_its_user(void **state) {
        Fixture *f = *state;
        for (unsigned i = 1; i <= 2; i++) {
                see_rank(f, 3);
                Bundle *b = find_bundle(f, i, ZEROS);
                assert_false(is_named(f, b));
                pass(f, 8 * SEC);
                assert_true(is_named(f, b));
                assert_string_equal(b->rec.name.key, key_of(JOB));
                restart(f); /* then the job's user is known by its ranks again */
                pass(f, 130 * SEC);
        }
}

/* ---- where the bundles are ---- */

/* @return this node's record of the first failure of a key (record_done) */
static Record own_record(const char *text) {
        Record r = { 0 };
        char prefix[RECORD_NAME_SIZE];
        (void)snprintf(prefix, sizeof prefix, ".incidents/%s/1/", key_of(text));
        for (size_t i = 0; i < bucket.n; i++) {
                const char *name = bucket.items[i].name, *data = bucket.items[i].data;
                Record read = { 0 };
                if (strncmp(name, prefix, strlen(prefix)) != 0 || !strstr(name, "-i-1.json"))
                        continue;
                assert_int_equal(record_parse(data, strlen(data), key_of(text), 1, &read), 0);
                record_done(read.revision >= r.revision ? &r : &read);
                r = read.n ? read : r;
        }
        assert_int_equal(r.n, 1);
        return r;
}

static void assert_bundle(const Record *r, const char *id, BundleState state, bool has_object) {
        for (size_t i = 0; i < r->bundles.n; i++) {
                const NodeBundle *b = &r->bundles.items[i];
                if (strcmp(b->id, id) != 0)
                        continue;
                _cleanup_free_ char *object = strbuf_format("/v/\\xff-%s.tar", id);
                assert_int_equal(b->state, state);
                if (has_object)
                        assert_string_equal(b->object, object);
                else
                        assert_null(b->object);
                return;
        }
        fail_msg("the record lacks %s", id);
}

static int count_rows(BundleRecord *rec, void *userdata) {
        assert_int_equal(rec->name.n, 1);
        ++*(size_t *)userdata;
        return 0;
}

/* So many rows say that they are of the first failure of a key. */
static void assert_numbered(Fixture *f, const char *text, size_t n) {
        StoreFilter filter = { .state = -1, .failure_key = key_of(text), .failure_n = 1 };
        size_t n_rows = 0;
        assert_int_equal(store_list(f->store, &filter, count_rows, &n_rows), 0);
        assert_int_equal(n_rows, n);
        filter.failure_n = 0;
        assert_int_equal(store_list(f->store, &filter, count_rows, &n_rows), 0);
        assert_int_equal(n_rows, n);
}

static void a_record_names_the_object_of_each_bundle_of_its_failure(void **state) {
        Fixture *f = *state;
        decide_elsewhere(f, RUNTIME_ID);
        Bundle *dump = find_bundle(f, 1, RUNTIME_ID);
        pass(f, 8 * SEC);
        Bundle *own = add_own(f, 1, dump->rec.id, 0), *other = add_own(f, 2, "", 0);
        assert_true(is_named(f, dump) && is_named(f, own) && is_named(f, other));
        deliver(f, dump);
        Bundle *late = add_supplement(f, 1);
        assert_true(is_named(f, late));
        bundle_save(f->table, own);
        bundle_save(f->table, late);
        pass(f, 40 * SEC);
        _cleanup_(record_done) Record before = own_record(RUNTIME_ID);
        assert_int_equal(before.bundles.n, 3);
        assert_bundle(&before, BUNDLE "1", BUNDLE_DELIVERED, true);
        assert_bundle(&before, BUNDLE "1-s1", BUNDLE_READY, false);
        assert_bundle(&before, "snapshot-20260527T051233-000000000001", BUNDLE_READY, false);
        deliver(f, own);
        assert_int_equal(bundle_set_state(f->table, late, BUNDLE_CANCELLED, NULL), 0);
        deliver(f, other);
        pass(f, 40 * SEC);
        _cleanup_(record_done) Record after = own_record(RUNTIME_ID);
        assert_int_equal(after.bundles.n, 3);
        assert_bundle(&after, BUNDLE "1-s1", BUNDLE_CANCELLED, false);
        assert_bundle(&after, "snapshot-20260527T051233-000000000001", BUNDLE_DELIVERED, true);
        assert_true(after.revision > before.revision);
        unsigned n = bucket.n_calls[OBJECT_PUT];
        pass(f, 300 * SEC); /* incident.json at most: the record has not changed */
        _cleanup_(record_done) Record last = own_record(RUNTIME_ID);
        assert_true(last.revision == after.revision && bucket.n_calls[OBJECT_PUT] <= n + 1);
}

static void in_a_drain_the_record_is_written_at_once(void **state) {
        Fixture *f = *state;
        decide_elsewhere(f, RUNTIME_ID);
        Bundle *dump = find_bundle(f, 1, RUNTIME_ID);
        pass(f, 8 * SEC);
        Bundle *own = add_own(f, 1, dump->rec.id, 0);
        assert_true(is_named(f, dump) && is_named(f, own));
        deliver(f, dump);
        pass(f, 10 * SEC); /* from now on a record would wait */
        failures_hurry(f->failures, true);
        assert_false(failures_are_recording(f->failures));
        deliver(f, own);
        assert_true(failures_are_recording(f->failures));
        assert_false(failures_is_idle(f->failures));
        turn(f);
        assert_false(failures_are_recording(f->failures));
        _cleanup_(record_done) Record r = own_record(RUNTIME_ID);
        assert_bundle(&r, "snapshot-20260527T051233-000000000001", BUNDLE_DELIVERED, true);
        assert_true(failures_is_idle(f->failures));
}

/* Claims of ranks that live are not stored: the next record has fewer. */
/* A drain waits for the record, but for no destination that does not answer. */
static void a_record_is_waited_for_as_long_as_its_destination_answers(void **state) {
        Fixture *f = *state;
        decide_elsewhere(f, RUNTIME_ID);
        Bundle *dump = find_bundle(f, 1, RUNTIME_ID);
        pass(f, 8 * SEC);
        assert_true(is_named(f, dump));
        pass(f, 40 * SEC);
        failures_hurry(f->failures, true);
        bucket.is_silent = true;
        deliver(f, dump);
        for (uint64_t t = 0; t <= 50; t++) {
                assert_true(failures_are_recording(f->failures));
                pass(f, SEC / 10);
        }
        assert_false(failures_are_recording(f->failures));
        bucket.is_silent = false;
        bucket.is_full = true;
        for (uint64_t t = 0; t <= 600; t++) {
                pass(f, SEC / 10);
                assert_false(failures_are_recording(f->failures));
        }
        bucket.is_full = false;
        pass(f, 60 * SEC);
        _cleanup_(record_done) Record r = own_record(RUNTIME_ID);
        assert_bundle(&r, BUNDLE "1", BUNDLE_DELIVERED, true);
}

static void the_record_that_was_written_last_is_the_newest_also_with_fewer_claims(void **state) {
        Fixture *f = *state;
        for (unsigned i = 1; i <= 2; i++) {
                for (int64_t rank = 1; i == 1 && rank <= 4; rank++)
                        see_rank(f, rank);
                char path[32];
                (void)snprintf(path, sizeof path, "/dumps/%u", i);
                hear(f, (NoteOptions){ .job = JOB,
                                       .date_time = DATE_TIME,
                                       .world_size = 64,
                                       .pid = 200 + (pid_t)i,
                                       .path = path });
                Bundle *b = find_bundle(f, i, ZEROS);
                pass(f, 8 * SEC);
                assert_true(is_named(f, b));
                assert_int_equal(b->rec.name.n, 1);
                deliver(f, b);
                pass(f, 40 * SEC);
                restart(f);
        }
        assert_int_equal(n_objects(".incidents/", "-i-1.json"), 2);
        _cleanup_(record_done) Record r = own_record(JOB);
        assert_int_equal(r.claims.n, 2);
        assert_bundle(&r, BUNDLE "2", BUNDLE_DELIVERED, true);
}

/* A record is written over the one before it, which has them. */
static void a_record_is_not_written_without_the_bundles_that_cannot_be_read(void **state) {
        Fixture *f = *state;
        decide_elsewhere(f, RUNTIME_ID);
        Bundle *dump = find_bundle(f, 1, RUNTIME_ID);
        pass(f, 8 * SEC);
        assert_true(is_named(f, dump));
        deliver(f, dump);
        pass(f, 40 * SEC);
        const Claim c = process(f, 0)->claim;
        assert_int_equal(sqlite3_exec(f->store->db, "ALTER TABLE deliveries RENAME TO away", NULL,
                                      NULL, NULL),
                         SQLITE_OK);
        agreement_on_bundle(f->failures->agreement, key_of(RUNTIME_ID), 1,
                            failures_now_usec(f->failures));
        pass(f, 40 * SEC);
        _cleanup_(record_done) Record before = own_record(RUNTIME_ID);
        assert_bundle(&before, c.bundle, BUNDLE_DELIVERED, true);
        assert_int_equal(sqlite3_exec(f->store->db, "ALTER TABLE away RENAME TO deliveries", NULL,
                                      NULL, NULL),
                         SQLITE_OK);
        pass(f, 40 * SEC);
        _cleanup_(record_done) Record after = own_record(RUNTIME_ID);
        assert_bundle(&after, c.bundle, BUNDLE_DELIVERED, true);
        assert_true(after.revision > before.revision);
}

static void what_went_alone_is_named_when_its_failure_is_known(void **state) {
        Fixture *f = *state;
        bucket.is_silent = true;
        Bundle *dump = find_bundle(f, 1, RUNTIME_ID);
        assert_false(is_named(f, dump));
        pass(f, 20 * SEC);
        assert_true(is_named(f, dump));
        Bundle *own = add_own(f, 1, dump->rec.id, 0);
        assert_true(is_named(f, own));
        deliver(f, dump);
        Bundle *late = add_supplement(f, 1);
        assert_true(is_named(f, late));
        assert_string_equal(late->rec.name.key, "");
        deliver(f, late);
        decide_elsewhere(f, RUNTIME_ID);
        bucket.is_silent = false;
        pass(f, 60 * SEC);
        _cleanup_(record_done) Record before = own_record(RUNTIME_ID);
        assert_int_equal(before.bundles.n, 3);
        assert_bundle(&before, BUNDLE "1", BUNDLE_DELIVERED, true);
        assert_bundle(&before, BUNDLE "1-s1", BUNDLE_DELIVERED, true);
        assert_numbered(f, RUNTIME_ID, 3);
        assert_name(own, "alone", "", "", 1); /* its place stays */
        restart(f);
        own = bundle_table_find(f->table, "snapshot-20260527T051233-000000000001");
        own->rec.name = (FailureName){ 0 }; /* it began before it was known of what it is */
        own->rec.deliveries[0].object = strdup("/v/x");
        assert_true(is_named(f, own));
        assert_name(own, "alone", "", "", 1);
        free(own->rec.deliveries[0].object);
        deliver(f, own);
        pass(f, 60 * SEC);
        _cleanup_(record_done) Record after = own_record(RUNTIME_ID);
        assert_int_equal(after.bundles.n, 3);
        assert_bundle(&after, "snapshot-20260527T051233-000000000001", BUNDLE_DELIVERED, true);
        assert_int_equal(n_objects("", ".see.json"), 0);
}

static void also_in_a_drain_what_went_alone_is_in_the_first_record(void **state) {
        Fixture *f = *state;
        bucket.is_silent = true;
        failures_hurry(f->failures, true);
        Bundle *dump = find_bundle(f, 1, RUNTIME_ID);
        assert_false(is_named(f, dump));
        pass(f, 3 * SEC);
        assert_true(is_named(f, dump));
        assert_name(dump, "alone", "", "", 0);
        deliver(f, dump);
        bucket.is_silent = false;
        pass(f, 30 * SEC);
        _cleanup_(record_done) Record r = own_record(RUNTIME_ID);
        assert_bundle(&r, BUNDLE "1", BUNDLE_DELIVERED, true);
}

static void what_was_named_before_its_failure_had_a_number_is_in_that_record(void **state) {
        Fixture *f = *state;
        bucket.is_silent = true;
        hear_job_of_one_node(f);
        Bundle *dump = find_bundle(f, 1, ZEROS), *own = add_own(f, 1, "", 100);
        assert_true(is_named(f, dump) && is_named(f, own));
        assert_int_equal(own->rec.name.n, 0);
        assert_string_equal(own->rec.name.key, key_of(JOB));
        deliver(f, dump);
        assert_true(failures_are_recording(f->failures));
        bucket.is_silent = false;
        pass(f, 40 * SEC);
        assert_int_equal(own->rec.name.n, 1);
        bundle_save(f->table, own);
        assert_numbered(f, JOB, 2);
        deliver(f, own);
        pass(f, 40 * SEC);
        assert_false(failures_are_recording(f->failures));
        _cleanup_(record_done) Record r = own_record(JOB);
        assert_int_equal(r.bundles.n, 2);
        assert_bundle(&r, BUNDLE "1", BUNDLE_DELIVERED, true);
        assert_bundle(&r, "snapshot-20260527T051233-000000000001", BUNDLE_DELIVERED, true);
}

static void a_dump_that_ends_before_its_failure_has_a_name_is_of_it_too(void **state) {
        Fixture *f = *state;
        bucket.is_silent = true;
        Bundle *dump = find_bundle(f, 1, RUNTIME_ID);
        assert_false(is_named(f, dump));
        assert_int_equal(bundle_set_state(f->table, dump, BUNDLE_CANCELLED, NULL), 0);
        decide_elsewhere(f, RUNTIME_ID);
        bucket.is_silent = false;
        pass(f, 60 * SEC);
        assert_numbered(f, RUNTIME_ID, 1);
        _cleanup_(record_done) Record r = own_record(RUNTIME_ID);
        assert_bundle(&r, BUNDLE "1", BUNDLE_CANCELLED, false);
}

static void a_rank_that_lives_through_a_failure_is_of_the_one_that_it_fails_in(void **state) {
        Fixture *f = *state;
        see_rank(f, 0);
        see_rank(f, 1);
        hear(f, (NoteOptions){ .job = JOB,
                               .rank = 0,
                               .cluster_id = RUNTIME_ID,
                               .date_time = DATE_TIME,
                               .pid = 100,
                               .path = "/dumps/1" });
        pass(f, 60 * SEC);
        assert_int_equal(process(f, 0)->n, 1);
        assert_int_equal(process(f, 1)->claim.state, CLAIM_ALIVE);
        pass(f, USEC_PER_HOUR);
        hear(f, (NoteOptions){ .job = JOB,
                               .rank = 1,
                               .cluster_id = OTHER_ID,
                               .date_time = OTHER_TIME,
                               .pid = 101,
                               .path = "/dumps/2" });
        (void)find_bundle(f, 2, OTHER_ID);
        pass(f, 60 * SEC);
        assert_int_equal(process(f, 1)->n, 2);
        restart(f);
        bucket.is_silent = true;
        Bundle *dump = bundle_table_find(f->table, BUNDLE "2");
        failures_on_found(f->failures, dump);
        assert_true(is_named(f, dump));
        assert_name(dump, "store", OTHER_ID, OTHER_TIME, 2);
}

/* ---- pointers ---- */

#define OWN_POINTER DATE_TIME "-" RUNTIME_ID "/i-1/" BUNDLE "1.see.json"

static void a_pointer_lies_at_the_bundles_own_place(void **state) {
        Fixture *f = *state;
        decide_elsewhere(f, RUNTIME_ID);
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        pass(f, 8 * SEC);
        assert_true(is_named(f, b));
        assert_name(b, "store", OTHER_ID, OTHER_TIME, 1);
        bucket.outcome = OBJECT_UNREACHABLE;
        b->rec.n_deliveries = 1; /* the other one's would have the same name here */
        delivery_record_done(&b->rec.deliveries[1]);
        deliver(f, b);
        turn(f);
        assert_null(object(OWN_POINTER));
        bucket.outcome = OBJECT_OK;
        pass(f, 31 * SEC);
        const char *pointer = object(OWN_POINTER);
        assert_non_null(pointer);
        json_t *v = json_loads(pointer, 0, NULL);
        assert_non_null(v);
        assert_string_equal(json_string_value(json_object_get(v, "cluster_id")), OTHER_ID);
        assert_string_equal(json_string_value(json_object_get(v, "agreed")), "store");
        json_decref(v);
        assert_int_equal(n_objects("", ".see.json"), 1);
        assert_int_equal(f->failures->pointers.n, 0);
        assert_int_equal(n_units(f), 0);
}

static void where_both_places_are_one_there_is_none(void **state) {
        Fixture *f = *state;
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        pass(f, 8 * SEC);
        assert_true(is_named(f, b));
        deliver(f, b);
        pass(f, 60 * SEC);
        assert_int_equal(n_objects("", ".see.json"), 0);
        assert_int_equal(f->failures->pointers.n, 0);
}

static void pointers_are_bounded_and_those_underway_are_cancelled(void **state) {
        Fixture *f = *state;
        BundleRecord rec = { .id = BUNDLE "1",
                             .date_time = DATE_TIME,
                             .cluster_id = RUNTIME_ID,
                             .name = { "store", OTHER_ID, OTHER_TIME, false, "", 1 } };
        add_delivery(&rec, "x");
        rec.deliveries[0].state = DELIVERY_DONE;
        rec.deliveries[0].object = strdup("/v/1");
        bucket.is_silent = true;
        for (unsigned i = 0; i < 1030; i++)
                failure_pointers_add(&f->failures->pointers, &rec);
        assert_int_equal(f->failures->pointers.n, 1024);
        turn(f);
        assert_int_equal(bucket.n_calls[OBJECT_PUT], 1024);
        for (unsigned i = 0; i < 6; i++)
                failure_pointers_add(&f->failures->pointers, &rec);
        failures_set_scheduler(f->failures, NULL);
        assert_true(list_is_empty(&bucket.calls));
        bucket.is_silent = false;
        failures_set_scheduler(f->failures, (Scheduler *)&bucket);
        turn(f);
        assert_int_equal(f->failures->pointers.n, 0);
        bundle_record_done(&rec);
}

/* ---- a state database that was lost ---- */

static Bundle *find_old_bundle(Fixture *f, unsigned n) {
        Bundle *b = add_bundle(f, n, RUNTIME_ID);
        b->rec.oldest_mtime_usec = T0 - USEC_PER_HOUR; /* before the state database was made */
        bucket.is_shared = false;
        failures_on_found(f->failures, b);
        return b;
}

static void after_a_loss_of_state_a_pointer_leads_to_the_name(void **state) {
        Fixture *f = *state;
        put_object(OWN_POINTER,
                   "{\"schema\":\"neuron-collectd/pointer/1\",\"agreed\":\"store\","
                   "\"cluster_id\":\"" OTHER_ID "\",\"date_time\":\"" OTHER_TIME "\"}");
        Bundle *b = find_old_bundle(f, 1);
        assert_false(is_named(f, b));
        turn(f);
        assert_true(is_named(f, b));
        assert_name(b, "store", OTHER_ID, OTHER_TIME, 0);
}

static void pointers_that_are_none_do_not_count(void **state) {
        static const char *const documents[] = {
                "",
                "[]",
                "{\"agreed\":\"store\"}",
                "{\"agreed\":1,\"cluster_id\":2,\"date_time\":3}",
                "{\"agreed\":\"store\",\"cluster_id\":\"../..\",\"date_time\":\"" OTHER_TIME "\"}",
                "{\"agreed\":\"store\",\"cluster_id\":\"" OTHER_ID "\",\"date_time\":\"../x\"}",
                "{\"agreed\":\"store\",\"cluster_id\":\"" ZEROS "\",\"date_time\":\"" OTHER_TIME
                "\"}",
                "{\"agreed\":\"store\",\"cluster_id\":\"" OTHER_ID OTHER_ID OTHER_ID
                "\",\"date_time\":\"" OTHER_TIME "\"}",
                "{\"agreed\":\"evil\",\"cluster_id\":\"" OTHER_ID "\",\"date_time\":\"" OTHER_TIME
                "\"}",
                /* cut in the middle of a character it would be no UTF-8 */
                "{\"agreed\":\"storeo\xc3\xa9\",\"cluster_id\":\"" OTHER_ID
                "\",\"date_time\":\"" OTHER_TIME "\"}",
        };
        Fixture *f = *state;
        for (unsigned i = 0; i < ELEMENTSOF(documents); i++) {
                char name[160];
                (void)snprintf(name, sizeof name,
                               DATE_TIME "-" RUNTIME_ID "/i-1/" BUNDLE "%u.see.json", i);
                put_object(name, documents[i]);
                Bundle *b = find_old_bundle(f, i);
                assert_false(is_named(f, b));
                turn(f);
                assert_true(is_named(f, b));
                assert_string_equal(b->rec.name.cluster_id, "");
                assert_string_equal(b->rec.name.date_time, "");
                assert_true(i >= 4 && i <= 6 ? strcmp(b->rec.name.agreed, "store") == 0
                                             : strcmp(b->rec.name.agreed, "alone") == 0);
        }
        assert_int_equal(bucket.n_calls[OBJECT_GET], ELEMENTSOF(documents));
}

static void a_search_for_a_pointer_is_repeated_by_another_scheduler(void **state) {
        Fixture *f = *state;
        bucket.is_silent = true;
        Bundle *b = find_old_bundle(f, 1);
        assert_false(is_named(f, b));
        assert_false(is_named(f, b));
        assert_int_equal(bucket.n_calls[OBJECT_GET], 1);
        failures_set_scheduler(f->failures, NULL);
        failures_set_scheduler(f->failures, (Scheduler *)&bucket);
        bucket.is_silent = false;
        assert_false(is_named(f, b));
        assert_int_equal(bucket.n_calls[OBJECT_GET], 2);
        turn(f);
        assert_true(is_named(f, b));
        assert_name(b, "alone", "", "", 0);
}

static void a_search_at_a_destination_that_is_away_is_repeated_for_a_while(void **state) {
        Fixture *f = *state;
        put_object(OWN_POINTER, "{\"agreed\":\"store\",\"cluster_id\":\"" OTHER_ID
                                "\",\"date_time\":\"" OTHER_TIME "\"}");
        bucket.outcome = OBJECT_UNREACHABLE;
        Bundle *b = find_old_bundle(f, 1), *other = find_old_bundle(f, 2);
        assert_false(is_named(f, b) || is_named(f, other));
        pass(f, 19 * SEC);
        assert_false(is_named(f, b) || is_named(f, other));
        bucket.outcome = OBJECT_OK;
        turn(f);
        assert_true(is_named(f, b));
        assert_name(b, "store", OTHER_ID, OTHER_TIME, 0);
        bucket.outcome = OBJECT_UNREACHABLE;
        (void)is_named(f, other);
        pass(f, SEC);
        assert_true(is_named(f, other));
        assert_name(other, "alone", "", "", 0);
}

/* ---- bounds and hostile notes ---- */

static void another_users_hook_names_no_failure(void **state) {
        Fixture *f = *state;
        hear(f, (NoteOptions){ .job = JOB,
                               .cluster_id = OTHER_ID,
                               .world_size = 64,
                               .uid = 1001,
                               .pid = 100,
                               .path = "/dumps/1" });
        Bundle *b = find_bundle(f, 1, RUNTIME_ID);
        assert_string_equal(process(f, 0)->claim.bundle, b->rec.id);
        b->facts.owners = (FileOwners){ .has_others = true, .uid = 1000 };
        (void)is_named(f, b);
        pass(f, 8 * SEC);
        assert_true(is_named(f, b));
        assert_name(b, "store", RUNTIME_ID, DATE_TIME, 1);
        assert_string_equal(b->rec.name.key, key_of(RUNTIME_ID));
        assert_string_equal(process(f, 0)->claim.bundle, "");
        assert_int_equal(process(f, 0)->claim.bundle_state, CLAIM_BUNDLE_NONE);
        assert_null(process(f, 0)->unit);
}

static void keys_of_an_owner_are_bounded(void **state) {
        Fixture *f = *state;
        char job[64];
        for (unsigned i = 0; i < FAILURE_KEYS_OF_OWNER_MAX + 8; i++) {
                (void)snprintf(job, sizeof job, "job-%u", i);
                hear(f, (NoteOptions){ .job = job, .pid = 100 + (pid_t)i });
        }
        assert_int_equal(n_items(&f->failures->table.keys), FAILURE_KEYS_OF_OWNER_MAX);
        assert_int_equal(f->failures->table.n_dropped, 8);
        hear(f, (NoteOptions){ .job = "other", .pid = 1, .uid = 1001 });
        assert_int_equal(n_items(&f->failures->table.keys), FAILURE_KEYS_OF_OWNER_MAX + 1);
        hear(f, (NoteOptions){ .job = "job-0", .pid = 2 }); /* one of those that he has */
        assert_int_equal(n_items(&f->failures->table.processes), FAILURE_KEYS_OF_OWNER_MAX + 2);
        assert_int_equal(f->failures->table.n_dropped, 8);
        pass(f, 8 * SEC); /* all are placed: the oldest gives way, with its processes */
        hear(f, (NoteOptions){ .job = "job-1000", .pid = 3 });
        assert_non_null(failure_table_find_key(&f->failures->table, key_of("job-1000")));
        assert_null(failure_table_find_key(&f->failures->table, key_of("job-0")));
        assert_int_equal(n_items(&f->failures->table.processes), FAILURE_KEYS_OF_OWNER_MAX + 1);
        pass(f, SEC);
}

static void fill_processes(Fixture *f, FailureKey *k, Claim *c, uid_t uid, unsigned n) {
        failures_init_claim(f->failures, c);
        for (c->pid = 1; c->pid <= n; c->pid++)
                assert_non_null(failure_table_get_process(&f->failures->table, k, c, uid));
}

static void processes_of_an_owner_are_bounded(void **state) {
        Fixture *f = *state;
        Claim c;
        FailureKey *k = failure_table_get_key(&f->failures->table, key_of(JOB), 1000);
        fill_processes(f, k, &c, 1000, FAILURE_PROCESSES_OF_OWNER_MAX);
        assert_null(failure_table_get_process(&f->failures->table, k, &c, 1000));
        assert_int_equal(f->failures->table.n_dropped, 1);
        assert_non_null(failure_table_get_process(&f->failures->table, k, &c, 1001));
        process(f, 7)->claim.state = CLAIM_ENDED; /* one of his that is settled goes */
        c.pid++;
        assert_non_null(failure_table_get_process(&f->failures->table, k, &c, 1000));
        assert_int_equal(process(f, 7)->claim.pid, 9);
        assert_int_equal(k->n_processes, FAILURE_PROCESSES_OF_OWNER_MAX + 1);
}

static void of_too_many_processes_the_oldest_that_is_settled_goes(void **state) {
        Fixture *f = *state;
        Claim c;
        FailureKey *k = failure_table_get_key(&f->failures->table, key_of(JOB), 0);
        fill_processes(f, k, &c, 0, FAILURE_PROCESSES_MAX);
        assert_null(failure_table_get_process(&f->failures->table, k, &c, 0));
        process(f, 7)->is_placed = true; /* alive, so that it is needed */
        assert_null(failure_table_get_process(&f->failures->table, k, &c, 0));
        process(f, 7)->claim.state = CLAIM_FAILED;
        assert_non_null(failure_table_get_process(&f->failures->table, k, &c, 0));
        assert_int_equal(n_items(&f->failures->table.processes), FAILURE_PROCESSES_MAX);
        assert_int_equal(k->n_processes, FAILURE_PROCESSES_MAX);
        assert_int_equal(process(f, 7)->claim.pid, 9);
}

/* A unit lasts as long as it has a process or a bundle, which are bounded. */
static void units_that_were_only_named_go_with_their_processes(void **state) {
        Fixture *f = *state;
        char path[32];
        for (unsigned i = 0; i <= FAILURE_PROCESSES_OF_OWNER_MAX; i++) {
                (void)snprintf(path, sizeof path, "/dumps/%u", i);
                hear(f, (NoteOptions){ .job = JOB, .pid = 100 + (pid_t)i, .path = path });
        }
        assert_int_equal(n_units(f), FAILURE_PROCESSES_OF_OWNER_MAX);
        assert_int_equal(f->failures->table.n_dropped, 1);
        pass(f, 8 * SEC); /* all are placed: the oldest gives way */
        hear(f, (NoteOptions){ .job = JOB, .pid = 99, .path = "/dumps/x" });
        assert_int_equal(n_units(f), FAILURE_PROCESSES_OF_OWNER_MAX);
        assert_null(failure_table_find_unit(&f->failures->table, "dumps", "/dumps/0"));
        assert_non_null(failure_table_find_unit(&f->failures->table, "dumps", "/dumps/x"));
}

/* What an operator may take up again holds no unit meanwhile. */
static void a_quarantined_bundle_has_no_unit_and_gets_its_claims_back(void **state) {
        Fixture *f = *state;
        Bundle *b = NULL;
        hear(f, (NoteOptions){ .job = JOB, .world_size = 64, .pid = 100, .path = "/dumps/1" });
        b = find_bundle(f, 1, RUNTIME_ID);
        b->rec.state = BUNDLE_SHIPPING;
        assert_int_equal(bundle_set_state(f->table, b, BUNDLE_QUARANTINED, NULL), 0);
        assert_int_equal(n_units(f), 0);
        assert_int_equal(bundle_table_revive(f->table, BUNDLE "1", NULL, &b), 0);
        failures_on_found(f->failures, b);
        assert_int_equal(n_units(f), 1);
        assert_ptr_equal(b->failure_unit->first, process(f, 0));
}

static void names_in_notes_enter_paths_only_when_they_are_names(void **state) {
        static const char *const cluster_ids[] = {
                "../../etc", "a/b", "a b",
                "",          ZEROS, "\xff\xfe",
                "a\nb",      ".",   "0123456789012345678901234567890123456789"
        };
        static const char *const date_times[] = { "../../etc", "", "now", "20261399-999999",
                                                  "20260527-051233/../x" };
        Fixture *f = *state;
        for (unsigned i = 0; i < ELEMENTSOF(cluster_ids); i++) {
                char job[64];
                (void)snprintf(job, sizeof job, "job-%u", i);
                hear(f, (NoteOptions){ .cluster_id = cluster_ids[i], .pid = 1000 }); /* no key */
                hear(f, (NoteOptions){ .job = job,
                                       .cluster_id = cluster_ids[i],
                                       .date_time = date_times[i % ELEMENTSOF(date_times)],
                                       .world_size = 64,
                                       .pid = 100 + (pid_t)i });
        }
        pass(f, 60 * SEC); /* the fake destination refuses what leaves it */
        assert_int_equal(bucket.n_calls[OBJECT_CREATE], n_items(&f->failures->table.keys));
        AgreementFailure x;
        size_t n = 0;
        for (; agreement_failure(f->failures->agreement, n, &x); n++) {
                assert_true(decision_name_is_valid(x.decision));
                assert_int_equal(strncmp(x.decision->date_time, "20260527-052", 12), 0);
        }
        assert_true(n >= ELEMENTSOF(cluster_ids));
}

static void without_a_boot_id_there_are_no_failures(void **state) {
        Fixture *f = *state;
        Failures *none = NULL;
        boot_error = -ENOENT;
        assert_int_equal(failures_new(&none, &f->failures->context, f->config), -ENOENT);
        boot_error = 0;
        assert_null(none);
}

static void the_status_says_what_there_is(void **state) {
        Fixture *f = *state;
        hear(f, (NoteOptions){ .job = "a\"b", .world_size = 64, .pid = 100 });
        pass(f, 8 * SEC);
        StrBuf b = STRBUF_INIT;
        failures_add_status(f->failures, &b);
        _cleanup_free_ char *text = strbuf_detach(&b);
        json_t *v = json_loads(text, 0, NULL), *x;
        assert_non_null(v);
        x = json_array_get(json_object_get(v, "failures"), 0);
        assert_string_equal(json_string_value(json_object_get(x, "job")), "a\"b");
        assert_string_equal(json_string_value(json_object_get(x, "agreed")), "store");
        assert_int_equal(json_integer_value(json_object_get(x, "failed")), 1);
        assert_string_equal(json_string_value(json_object_get(v, "arbiter")), "x");
        assert_string_equal(json_string_value(json_object_get(json_object_get(v, "bus"), "state")),
                            "off");
        json_decref(v);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_note_and_a_unit_make_one_claim),
                TEST(a_unit_without_a_note_is_claimed_after_2_s_or_when_it_is_ready),
                TEST(a_unit_that_went_is_not_claimed),
                TEST(a_rank_that_failed_is_the_process_of_its_note),
                TEST(a_process_keeps_its_job_and_rank_and_a_note_of_another_joins_it),
                TEST(a_process_whose_second_note_has_another_directory_leaves_the_first_one),
                TEST(a_name_is_frozen_and_there_after_a_restart),
                TEST(a_claim_that_had_no_failure_yet_is_asked_for_again_after_a_restart),
                TEST(ranks_that_cannot_be_are_not_known),
                TEST(what_is_stored_and_makes_no_sense_is_left_out),
                TEST(a_rank_s_bundle_is_the_one_that_has_its_files),
                TEST(what_was_delivered_before_a_kill_is_so_after_the_restart),
                TEST(what_a_restart_or_quarantine_interrupts_is_delivered_for_its_claim_too),
                TEST(a_supplement_is_named_as_its_base),
                TEST(what_the_agent_makes_about_a_dump_has_its_name_and_place),
                TEST(without_a_dump_it_has_the_name_of_its_process_s_failure),
                TEST(another_user_s_process_does_not_name_it),
                TEST(it_waits_for_its_dump_but_not_for_ever),
                TEST(about_nothing_that_is_known_it_has_no_failure),
                TEST(a_job_on_one_node_waits_for_nobody),
                TEST(without_an_arbiter_it_is_named_alone_at_once),
                TEST(an_arbiter_that_is_unable_is_none),
                TEST(after_a_reload_it_is_asked_again),
                TEST(a_reload_may_take_the_arbiter_away),
                TEST(the_source_of_a_note_names_the_arbiter_also_of_ranks_that_were_seen),
                TEST(waiting_ends_15_s_beyond_settling),
                TEST(in_a_hurry_waiting_ends_after_2_s),
                TEST(an_arbiter_that_is_away_is_waited_for_when_nobody_else_takes_it),
                TEST(in_a_hurry_not_even_then),
                TEST(between_two_questions_to_an_arbiter_that_is_back_it_waits_too),
                TEST(nor_on_a_store_that_accepts_bundles_and_fails_otherwise),
                TEST(it_is_idle_when_all_is_written_or_after_5_s),
                TEST(records_and_incident_json_are_written_and_nonsense_beside_them_is_left_out),
                TEST(of_many_records_some_are_folded),
                TEST(however_many_bundles_records_have_all_claims_are_folded),
                TEST(some_records_are_read_at_a_time_and_an_error_ends_all),
                TEST(without_the_stores_clock_nothing_is_written),
                TEST(an_error_lasts_until_a_task_has_succeeded),
                TEST(where_prefixes_differ_by_node_there_is_no_incident_json),
                TEST(a_job_that_failed_elsewhere_is_reported_once_where_ranks_live),
                TEST(a_unit_without_a_note_belongs_to_the_only_job_of_its_user),
                TEST(a_record_names_the_object_of_each_bundle_of_its_failure),
                TEST(in_a_drain_the_record_is_written_at_once),
                TEST(a_record_is_waited_for_as_long_as_its_destination_answers),
                TEST(the_record_that_was_written_last_is_the_newest_also_with_fewer_claims),
                TEST(a_record_is_not_written_without_the_bundles_that_cannot_be_read),
                TEST(what_went_alone_is_named_when_its_failure_is_known),
                TEST(also_in_a_drain_what_went_alone_is_in_the_first_record),
                TEST(what_was_named_before_its_failure_had_a_number_is_in_that_record),
                TEST(a_dump_that_ends_before_its_failure_has_a_name_is_of_it_too),
                TEST(a_rank_that_lives_through_a_failure_is_of_the_one_that_it_fails_in),
                TEST(a_pointer_lies_at_the_bundles_own_place),
                TEST(where_both_places_are_one_there_is_none),
                TEST(pointers_are_bounded_and_those_underway_are_cancelled),
                TEST(after_a_loss_of_state_a_pointer_leads_to_the_name),
                TEST(pointers_that_are_none_do_not_count),
                TEST(a_search_for_a_pointer_is_repeated_by_another_scheduler),
                TEST(a_search_at_a_destination_that_is_away_is_repeated_for_a_while),
                TEST(another_users_hook_names_no_failure),
                TEST(keys_of_an_owner_are_bounded),
                TEST(processes_of_an_owner_are_bounded),
                TEST(of_too_many_processes_the_oldest_that_is_settled_goes),
                TEST(units_that_were_only_named_go_with_their_processes),
                TEST(a_quarantined_bundle_has_no_unit_and_gets_its_claims_back),
                TEST(names_in_notes_enter_paths_only_when_they_are_names),
                TEST(without_a_boot_id_there_are_no_failures),
                TEST(the_status_says_what_there_is),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
