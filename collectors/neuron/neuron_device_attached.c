/* What an attached reader asks (neuron-interfaces 3.6), the most telling first: each question takes a line of the driver's log of 1024, so that a whole look
 * overwrites it. Addresses are left out. */
#include <string.h>
#include <unistd.h>

#include "collectors/neuron/neuron_abi_attached.h"
#include "collectors/neuron/neuron_device.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"

enum { FAILURES_MAX = 3 }; /* one after the other; then this kind of question is over */

static void ask_device_info(DeviceAsk *a) {
        static const char query[] = "device_info";
        NeuronDeviceInfo info = { 0 };
        StrBuf b = STRBUF_INIT;

        if (!device_answers(a, query, NEURON_DEVICE_INFO, &info))
                return;
        device_begin(a, &b, query);
        json_out_u64(&b, "architecture", info.architecture);
        json_out_u64(&b, "revision", info.revision);
        json_out_array(&b, "connected");
        for (uint32_t i = 0; i < MIN(info.n_connected, (uint32_t)ELEMENTSOF(info.connected)); i++)
                json_out_u64(&b, NULL, info.connected[i]);
        json_out_end_array(&b);
        json_out_array(&b, "bar_bytes");
        for (size_t i = 0; i < ELEMENTSOF(info.bar_size); i++)
                json_out_u64(&b, NULL, info.bar_size[i]);
        json_out_end_array(&b);
        device_end(a, &b);
}

static void add_app(StrBuf *b, const NeuronApp *app) {
        json_out_object(b, NULL);
        json_out_i64(b, "pid", app->pid);
        json_out_u64(b, "core_locks", app->core_locks);
        json_out_array(b, "models");
        for (size_t i = 0; i < ELEMENTSOF(app->uuid); i++) {
                const char *uuid = (const char *)app->uuid[i];
                json_out_text(b, NULL, uuid, strnlen(uuid, sizeof app->uuid[i]));
        }
        json_out_end_array(b);
        json_out_u64(b, "host_bytes", app->host_bytes);
        json_out_u64(b, "device_bytes", app->device_bytes);
        json_out_end_object(b);
}

/* @return how many of apps->entries are filled */
static uint32_t ask_apps(DeviceAsk *a, NeuronApps *apps) {
        static const char query[] = "apps_info";
        StrBuf b = STRBUF_INIT;
        uint32_t n;

        *apps = (NeuronApps){ .flags = NEURON_APPS_ALL, .capacity = NEURON_APPS_MAX };
        if (!device_answers(a, query, NEURON_ALL_APPS_INFO, apps))
                return 0;
        n = MIN(apps->n_entries, (uint32_t)NEURON_APPS_MAX);
        device_begin(a, &b, query);
        json_out_array(&b, "apps");
        for (uint32_t i = 0; i < n; i++)
                if (apps->entries[i].pid != getpid()) /* our own slot */
                        add_app(&b, &apps->entries[i]);
        json_out_end_array(&b);
        device_end(a, &b);
        return n;
}

static void ask_started(DeviceAsk *a) {
        static const char query[] = "nc_model_started_count";
        uint32_t n_cores = neuron_cores(a->device.architecture);
        uint64_t counts[NEURON_CORES_MAX] = { 0 };
        StrBuf b = STRBUF_INIT;

        for (uint32_t i = 0; i < n_cores; i++) {
                NeuronModelStarted started = { .core = i };
                if (!device_answers(a, query, NEURON_MODEL_STARTED_COUNT, &started))
                        return;
                counts[i] = started.count;
        }
        device_begin(a, &b, query);
        json_out_array(&b, "by_core");
        for (uint32_t i = 0; i < n_cores; i++)
                json_out_u64(&b, NULL, counts[i]);
        json_out_end_array(&b);
        device_end(a, &b);
}

typedef struct CoreValues { /* what a core has many of */
        const char *query;
        uint32_t command, n;
} CoreValues;

/* All semaphores or events of a core; null for one without an answer. */
static void ask_core_values(DeviceAsk *a, const CoreValues *values, uint32_t core) {
        unsigned n_failures = 0;
        StrBuf b = STRBUF_INIT;
        int r = 0, first = 0;

        device_begin(a, &b, values->query);
        json_out_u64(&b, "core", core);
        json_out_array(&b, "by_index");
        for (uint32_t i = 0; i < values->n && n_failures < FAILURES_MAX; i++) {
                NeuronCoreValue v = { .core = core, .index = i };
                r = device_ask(a, values->query, values->command, &v);
                if (r != 0)
                        json_out_null(&b, NULL);
                else
                        json_out_u64(&b, NULL, v.value);
                n_failures = r == 0 ? 0 : n_failures + 1;
                first = first == 0 ? r : first;
        }
        json_out_end_array(&b);
        if (first != 0) {
                char text[128];
                device_error_text(text, sizeof text, first);
                json_out_string(&b, "first_error", text);
        }
        device_end(a, &b);
}

static void add_queue(StrBuf *b, const char *key, const NeuronDmaQueueState *q) {
        const uint32_t values[] = { q->hw_status, q->sw_status, q->length,
                                    q->head,      q->tail,      q->completion_head };

        json_out_array(b, key);
        for (size_t i = 0; i < ELEMENTSOF(values); i++)
                json_out_u64(b, NULL, values[i]);
        json_out_end_array(b);
}

static bool queue_is_in_use(const NeuronDmaQueueState *q) {
        return q->hw_status || q->sw_status > 1 || q->length || q->head || q->tail ||
               q->completion_head;
}

/* @return whether it answered */
static bool add_queue_pair(DeviceAsk *a, StrBuf *b, uint32_t engine, uint32_t queue) {
        NeuronDmaQueueState tx = { 0 }, rx = { 0 };
        NeuronDmaQueue q = { .engine = engine, .queue = queue, .tx = &tx, .rx = &rx };
        int r = device_ask(a, "dma_queue_get_state", NEURON_DMA_QUEUE_GET_STATE, &q);

        if (r == 0 && !queue_is_in_use(&tx) && !queue_is_in_use(&rx))
                return true;
        json_out_object(b, NULL);
        json_out_u64(b, "queue", queue);
        if (r == 0) {
                add_queue(b, "tx", &tx);
                add_queue(b, "rx", &rx);
        } else {
                char text[128];
                device_error_text(text, sizeof text, r);
                json_out_string(b, "error", text);
        }
        json_out_end_object(b);
        return r == 0;
}

/* @return whether it answered */
static bool ask_engine(DeviceAsk *a, uint32_t engine) {
        static const char query[] = "dma_eng_get_state";
        NeuronDmaEngineState state = { 0 };
        NeuronDmaEngine e = { .engine = engine, .state = &state };
        StrBuf b = STRBUF_INIT;
        unsigned n_failures = 0;

        if (!device_answers(a, query, NEURON_DMA_ENG_GET_STATE, &e))
                return false;
        device_begin(a, &b, query);
        json_out_u64(&b, "engine", engine);
        json_out_u64(&b, "tx_state", state.tx_state);
        json_out_u64(&b, "rx_state", state.rx_state);
        json_out_u64(&b, "queues", state.n_queues);
        json_out_u64(&b, "queues_max", state.max_queues);
        json_out_array(&b, "in_use");
        /* The door knows how many may be asked: none of an engine that is disabled or being reset. */
        for (uint32_t i = 0; i < a->device.n_queues && n_failures < FAILURES_MAX; i++)
                n_failures = add_queue_pair(a, &b, engine, i) ? 0 : n_failures + 1;
        json_out_end_array(&b);
        device_end(a, &b);
        return true;
}

static void ask_dma(DeviceAsk *a) {
        uint32_t n = neuron_dma_engines(a->device.architecture);
        unsigned n_failures = 0;

        for (uint32_t i = 0; i < n && n_failures < FAILURES_MAX && a->error == 0; i++)
                n_failures = ask_engine(a, i) ? 0 : n_failures + 1;
}

void device_ask_attached(DeviceAsk *a) {
        static const CoreValues semaphores = { "semaphore_read", NEURON_SEMAPHORE_READ,
                                               NEURON_SEMAPHORES },
                                events = { "event_get", NEURON_EVENT_GET, NEURON_EVENTS };
        uint32_t n_cores = neuron_cores(a->device.architecture), n_apps;
        NeuronApps apps;

        ask_device_info(a);
        n_apps = ask_apps(a, &apps);
        ask_started(a);
        for (uint32_t i = 0; i < n_apps && a->error == 0; i++)
                if (apps.entries[i].pid > 0 && apps.entries[i].pid != getpid())
                        device_ask_datastore(a, apps.entries[i].pid);
        ask_dma(a);
        for (uint32_t i = 0; i < n_cores && a->error == 0; i++)
                ask_core_values(a, &semaphores, i);
        for (uint32_t i = 0; i < n_cores && a->error == 0; i++)
                ask_core_values(a, &events, i);
        a->progress->is_attached_done = true;
}
