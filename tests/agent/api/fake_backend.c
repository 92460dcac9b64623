#include "tests/agent/api/fake_backend.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"

#define T0 (UINT64_C(1779859295) * USEC_PER_SEC) /* 2026-05-27T05:21:35Z */
#define N_BUNDLES 4

struct FakeCalls fake_calls;
static int failure;
static bool is_ready = true;
static DrainView drain;

static const DestinationView destinations[] = {
        { .name = "fsx",
          .type = "volume",
          .state = "ok",
          .last_success_usec = T0 + 60 * USEC_PER_SEC,
          .bytes_delivered = 987654321 },
        { .name = "back\\up \"2\"",
          .type = "volume",
          .state = "failing",
          .last_error = "cannot write '/mnt/b\xff': no space left\non it" },
};
static const ShippingView shipping[] = { {
                                                 .id = FAKE_ID "1",
                                                 .destination = "fsx",
                                                 .sent_bytes = 1048576,
                                                 .done_bytes = 4194304,
                                                 .total_bytes = 8388608,
                                                 .rate = 2097152,
                                                 .eta_seconds = 2,
                                         },
                                         {
                                                 .id = FAKE_ID "1",
                                                 .destination = "back\\up \"2\"",
                                                 .eta_seconds = UINT64_MAX,
                                         } };
static const SourceView sources[] = {
        { .name = "core-dumps",
          .kind = "neuron-core-dump",
          .path = "/tmp/neuron-core-dump/dt-%d-cid-%c",
          .watch = "inotify",
          .n_watches = 17,
          .n_overflows = 1,
          .last_scan_seconds = 0.125,
          .used_bytes = 3000000,
          .max_use_bytes = 1000000000,
          .free_bytes = 400000000,
          .keep_free_bytes = 500000000,
          .n_held = 2,
          .n_unheld = 1,
          .retention_note = "short of room" },
        { .name = "profiles",
          .kind = "neuron-profile",
          .path = "/fsx/profiles",
          .watch = "scan",
          .note = "the file system is lustre: scanned every 60s",
          .last_scan_seconds = 1.5 },
};
static const LabelledCount discards[] = { { "symlink", 2 }, { "special-file", 1 } };
static const LabelledCount retries[] = { { "full", 3 } };

static const RequestView requests[] = { { "archive \"a\"", "UploadPart", 200, 64 },
                                        { "archive \"a\"", "UploadPart", 0, 1 } };

#define AGREEMENT                                                                                  \
        "{\"enabled\":true,\"ranks\":16,\"keys\":1,\"arbiter\":\"fsx\",\"last_error\":null,"       \
        "\"dropped\":0,\"bus\":{\"state\":\"listening\",\"connected\":2},\"failures\":[]}"

static void fake_view(AgentView *ret, void *userdata) {
        (void)userdata;
        fake_calls.view++;
        *ret = (AgentView){
                .version = "0.1.0",
                .instance_id = "i-0123456789abcdef0",
                .state = drain.is_draining ? "draining" : "running",
                .pid = 4242,
                .started_usec = T0 - USEC_PER_HOUR,
                .config_file = "/etc/neuron-collectd/neuron-collectd.yaml",
                .config_loaded_usec = T0 - USEC_PER_HOUR + 250 * USEC_PER_MSEC,
                .config_last_error = "neuron-collectd.yaml:14: limits.memory: '1MiB' is below "
                                     "16MiB; use 16MiB or more",
                .bundles = { [BUNDLE_SETTLING] = 1,
                             [BUNDLE_SHIPPING] = 1,
                             [BUNDLE_DELIVERED] = 1,
                             [BUNDLE_QUARANTINED] = 1 },
                .bytes_by_state = { [BUNDLE_SETTLING] = 10,
                                    [BUNDLE_SHIPPING] = 8388608,
                                    [BUNDLE_DELIVERED] = 4096,
                                    [BUNDLE_QUARANTINED] = 5 },
                .bytes_delivered = 987654321,
                .bytes_sent = UINT64_MAX, /* shown as the largest number that JSON readers take */
                .bytes_read = 2000000000,
                .buffer_bytes = 6291456,
                .destinations = destinations,
                .n_destinations = ELEMENTSOF(destinations),
                .shipping = shipping,
                .n_shipping = ELEMENTSOF(shipping),
                .limits = { .upload_rate = 52428800, .work_share = 0.25, .note = "a note" },
                .n_sources_deleted = 7,
                .sources_deleted_bytes = 123456789,
                .sources = sources,
                .n_sources = ELEMENTSOF(sources),
                .discards = discards,
                .n_discards = ELEMENTSOF(discards),
                .retries = retries,
                .n_retries = ELEMENTSOF(retries),
                .delivery_seconds = {
                        .le = { 1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 21600, 86400 },
                        .count = { 0, 2, 0, 1 },
                        .total = 4, /* one above the last bound */
                        .sum = 100023.5,
                },
                .requests = requests,
                .n_requests = ELEMENTSOF(requests),
                .request_seconds = {
                        .le = { 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60 },
                        .count = { 0, 50, 14 },
                        .total = 65,
                        .sum = 62.25,
                },
                .n_aborted_uploads = 2,
                .n_uploads_to_abort = 1,
                .drain = drain,
                .hook = { .socket = "/run/neuron-collectd/hook.sock",
                          .mailbox = "/var/lib/neuron-collectd/mailbox",
                          .n_socket = 128,
                          .n_mailbox = 3,
                          .n_refused = 7,
                          .n_twice = 2,
                          .n_unseen = 3,
                          .n_snapshots = 3,
                          .n_snapshots_dropped = 2,
                          .n_snapshots_underway = 1,
                          .n_open = 1,
                          .trouble = "the mailbox cannot be used",
                          .seconds = { .le = { 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5,
                                               10, 30 },
                                       .count = { [5] = 3, [7] = 1 },
                                       .total = 4,
                                       .sum = 1.25 } },
                .agreement = drain.is_draining ? NULL : AGREEMENT,
                .named = { { "store", 5 }, { "bus", 2 }, { "alone", 1 } },
                .ready = is_ready,
                .ready_note = is_ready ? NULL : "destination 'fsx': the volume is not mounted",
        };
}

static void add_delivery(BundleRecord *b, DeliveryRecord d) {
        b->deliveries = realloc(b->deliveries, (b->n_deliveries + 1) * sizeof *b->deliveries);
        if (!b->deliveries)
                abort();
        d.destination = strdup(d.destination);
        d.object = d.object ? strdup(d.object) : NULL;
        d.last_error = d.last_error ? strdup(d.last_error) : NULL;
        b->deliveries[b->n_deliveries++] = d;
}

static BundleRecord make_bundle(unsigned i) {
        static const BundleState states[N_BUNDLES] = { BUNDLE_SHIPPING, BUNDLE_DELIVERED,
                                                       BUNDLE_QUARANTINED, BUNDLE_SETTLING };
        BundleRecord b = {
                .source = strdup("core-dumps"),
                .state = states[i],
                .n_files = 3,
                .bytes = 8388608,
                .first_seen_usec = T0 + i * USEC_PER_SEC,
                .changed_usec = T0 + i * USEC_PER_SEC + 1,
                .complete = i != 2,
                .links_held = i == 0,
                .pinned = i == 1,
        };

        (void)snprintf(b.id, sizeof b.id, "%s%u", FAKE_ID, i + 1);
        if (i == 3)
                b.kind = SOURCE_DIRECTORY;
        else {
                (void)snprintf(b.date_time, sizeof b.date_time, "2026-05-27-05-21");
                (void)snprintf(b.cluster_id, sizeof b.cluster_id, "00000000000000ff");
        }
        b.path = strdup(i == 2 ? "/tmp/neuron-core-dump/dt-\xff\n"
                               : "/tmp/neuron-core-dump/dt-2026-05-27-05-21-cid-00000000000000ff");
        switch (i) {
        case 0:
                b.name = (FailureName){ .agreed = "store",
                                        .cluster_id = "d99e36ea74c263ca",
                                        .date_time = "2026-05-27-05-20",
                                        .derived = true,
                                        .key = "00112233445566aa",
                                        .n = 2 };
                add_delivery(&b, (DeliveryRecord){ .destination = (char *)"fsx",
                                                   .state = DELIVERY_SHIPPING,
                                                   .attempts = 1,
                                                   .last_error = (char *)"no space left" });
                add_delivery(&b, (DeliveryRecord){ .destination = (char *)"back\\up \"2\"",
                                                   .next_try_usec = T0 + USEC_PER_MINUTE });
                break;
        case 1:
                b.name = (FailureName){ .agreed = "alone" }; /* under its own name */
                b.origin = ORIGIN_SUPPLEMENT;
                (void)snprintf(b.supplement_of, sizeof b.supplement_of, "%s1", FAKE_ID);
                add_delivery(
                        &b, (DeliveryRecord){
                                    .destination = (char *)"fsx",
                                    .state = DELIVERY_DONE,
                                    .proof = PROOF_READBACK,
                                    .object = (char *)"/fsx/neuron/"
                                                      "2026-05-27-05-21-00000000000000ff/a.tar.zst",
                                    .bytes = 4096,
                                    .done_usec = T0 });
                break;
        case 2:
                b.reason = strdup(
                        "gave up after 20 failures: cannot read 'nc\xfe.bin': Input/output error");
                b.incomplete = strdup("[\"unreadable: nc-0.bin\", \"max_wait\"]");
                b.attempts = 20;
                break;
        default:
                break;
        }
        return b;
}

/* @return 0…3, or -ENOENT */
static int find(const char *id) {
        size_t n = strlen(FAKE_ID);

        if (strncmp(id, FAKE_ID, n) != 0 || id[n] < '1' || id[n] >= '1' + N_BUNDLES ||
            id[n + 1] != '\0')
                return -ENOENT;
        return id[n] - '1';
}

static int fake_list(const ViewFilter *f, int (*on_bundle)(const BundleRecord *b, void *u), void *u,
                     void *userdata) {
        unsigned n = 0;
        int after = f->after ? find(f->after) : -1;

        (void)userdata;
        fake_calls.list++;
        fake_calls.last_filter = *f;
        if (failure < 0)
                return failure;
        for (int i = after < -1 ? N_BUNDLES : after + 1; i < N_BUNDLES; i++) {
                _cleanup_(bundle_record_done) BundleRecord b = make_bundle((unsigned)i);
                int r;

                if ((f->state >= 0 && (int)b.state != f->state) ||
                    (f->source && strcmp(f->source, b.source) != 0) || n == f->limit)
                        continue;
                n++;
                r = on_bundle(&b, u);
                if (r < 0)
                        return r;
        }
        return 0;
}

static int fake_get(const char *id, BundleRecord *ret, char **ret_explain, void *userdata) {
        int i = find(id);

        (void)userdata;
        fake_calls.get++;
        if (failure < 0)
                return failure;
        if (i < 0)
                return i;
        *ret = make_bundle((unsigned)i);
        *ret_explain = i == 3 ? NULL
                              : strdup("It is being sent to 'fsx', half of it is there. Then its "
                                       "copy is read back.");
        return 0;
}

static int fake_act(const char *id, const char *action, char **ret_message, void *userdata) {
        int i = find(id);

        (void)userdata;
        fake_calls.act++;
        (void)snprintf(fake_calls.last_id, sizeof fake_calls.last_id, "%s", id);
        (void)snprintf(fake_calls.last_action, sizeof fake_calls.last_action, "%s", action);
        if (failure < 0)
                return failure;
        if (i < 0)
                return i;
        if (i == 1 && strcmp(action, "cancel") == 0) {
                *ret_message = strdup("it is delivered already; there is nothing to cancel");
                return -EPERM;
        }
        return 0;
}

static int fake_flush(bool settle, char **ret_message, void *userdata) {
        (void)userdata;
        fake_calls.flush++;
        fake_calls.settle = settle;
        if (failure < 0)
                return failure;
        *ret_message = strdup("3 bundles are tried now");
        return 0;
}

static int fake_snapshot(char ret_name[SNAPSHOT_NAME_SIZE], char **ret_message, void *userdata) {
        (void)userdata;
        fake_calls.snapshot++;
        if (failure == -EPERM)
                *ret_message = strdup("snapshots are off");
        strcpy(ret_name, FAKE_SNAPSHOT);
        return failure;
}

/* It has one file beside its document. */
static int fake_get_snapshot(const char *name, const char *file, SnapshotAnswer *ret,
                             void *userdata) {
        (void)userdata;
        if (strcmp(name, FAKE_SNAPSHOT) != 0 || (file && strcmp(file, "a.txt") != 0))
                return -ENOENT;
        *ret = (SnapshotAnswer){ .done = true,
                                 .directory = strdup("/x\xff"),
                                 .files = calloc(2, sizeof(char *)),
                                 .data = strdup(file ? "text" : "{\"schema\":\"s\"}\n") };
        ret->n_data = ret->data ? strlen(ret->data) : 0;
        if (ret->files)
                ret->files[0] = strdup("a.txt");
        return 0;
}

static int fake_drain(bool on, char **ret_message, void *userdata) {
        (void)userdata;
        fake_calls.drain++;
        fake_calls.on = on;
        if (failure < 0)
                return failure;
        if (on && !drain.is_draining)
                *ret_message = strdup("no new bundles are taken; 2 are not delivered yet");
        drain = on ? (DrainView){ .is_draining = true,
                                  .reason = "requested by the operator",
                                  .since_usec = T0,
                                  .missing = "2 bundles are not delivered: 1 settling, 1 shipping" }
                   : (DrainView){ 0 };
        return 0;
}

void fake_backend_draining(const DrainView *d) {
        drain = d ? *d : (DrainView){ 0 };
}

void fake_backend_fail(int error) {
        failure = error;
}

void fake_backend_ready(bool ready) {
        is_ready = ready;
}

const AgentBackend *fake_backend(void) {
        static const AgentBackend backend = {
                .view = fake_view,
                .list = fake_list,
                .get = fake_get,
                .act = fake_act,
                .flush = fake_flush,
                .drain = fake_drain,
                .snapshot = fake_snapshot,
                .get_snapshot = fake_get_snapshot,
        };

        return &backend;
}
