/* What is asked without attaching (neuron-interfaces 3.5): nothing of it is seen by the processes that use the device. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "collectors/neuron/neuron_abi.h"
#include "collectors/neuron/neuron_device.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"

int device_ask(DeviceAsk *a, const char *query, uint32_t command, void *argument) {
        int r;

        if (a->error < 0)
                return -ECANCELED;
        (void)snprintf(a->progress->asking, sizeof a->progress->asking, "%s", query);
        r = neuron_ioctl(&a->device, command, argument);
        a->progress->asking[0] = '\0';
        return r;
}

void device_error_text(char *text, size_t size, int r) {
        const char *name = strerrorname_np(-r), *description = strerrordesc_np(-r);

        if (r > 0)
                (void)snprintf(text, size, "the driver returned %d, which is no answer", r);
        else if (r == -EOPNOTSUPP)
                (void)snprintf(text, size, "not asked: this driver does not have it yet");
        else if (r == -ECANCELED)
                (void)snprintf(text, size,
                               "not opened: no process uses a device any more, and "
                               "opening one could reset the server's election");
        else
                (void)snprintf(text, size, "%s: %s", name ? name : "error",
                               description ? description : "unknown");
}

void device_begin(const DeviceAsk *a, StrBuf *b, const char *query) {
        json_out_object(b, NULL);
        json_out_string(b, "device", a->name);
        json_out_string(b, "query", query);
        json_out_object(b, "values");
}

static void write_record(DeviceAsk *a, StrBuf *b) {
        int r;

        strbuf_add(b, "\n");
        r = strbuf_error(b);
        if (r >= 0)
                r = fs_write_all(a->out_fd, b->text, b->n);
        if (r < 0 && a->error == 0)
                a->error = r;
        strbuf_done(b);
}

void device_end(DeviceAsk *a, StrBuf *b) {
        json_out_end_object(b);
        json_out_end_object(b);
        write_record(a, b);
}

void device_say_error(DeviceAsk *a, const char *query, int r) {
        StrBuf b = STRBUF_INIT;
        char text[128];

        if (a->error < 0)
                return;
        device_error_text(text, sizeof text, r);
        json_out_object(&b, NULL);
        json_out_string(&b, "device", a->name);
        json_out_string(&b, "query", query);
        json_out_string(&b, "error", text);
        json_out_end_object(&b);
        write_record(a, &b);
}

bool device_answers(DeviceAsk *a, const char *query, uint32_t command, void *argument) {
        int r = device_ask(a, query, command, argument);

        if (r != 0)
                device_say_error(a, query, r);
        return r == 0;
}

static void ask_basic_info(DeviceAsk *a) {
        static const char query[] = "device_basic_info";
        NeuronBasicInfo info = { 0 };
        StrBuf b = STRBUF_INIT;

        if (!device_answers(a, query, NEURON_DEVICE_BASIC_INFO, &info))
                return;
        device_begin(a, &b, query);
        json_out_u64(&b, "architecture", info.architecture);
        json_out_u64(&b, "revision", info.revision);
        device_end(a, &b);
}

static void ask_bdf(DeviceAsk *a) {
        static const char query[] = "device_bdf_ext";
        NeuronBdfExt bdf = { .nd_index = a->number };
        StrBuf b = STRBUF_INIT;
        char text[32];

        if (!device_answers(a, query, NEURON_DEVICE_BDF_EXT, &bdf))
                return;
        (void)snprintf(text, sizeof text, "%04x:%02x:%02x.%x", bdf.domain, bdf.bus, bdf.slot,
                       bdf.function);
        device_begin(a, &b, query);
        json_out_string(&b, "pci_address", text);
        device_end(a, &b);
}

void device_ask_free(DeviceAsk *a) {
        ask_basic_info(a);
        ask_bdf(a);
        a->progress->is_done = true;
}

/* ---- once a node ---- */

static void ask_compatible_version(DeviceAsk *a) {
        static const char query[] = "compatible_version";
        NeuronCompatibleVersion version = { 0 };
        StrBuf b = STRBUF_INIT;

        if (!device_answers(a, query, NEURON_COMPATIBLE_VERSION, &version))
                return;
        device_begin(a, &b, query);
        json_out_u64(&b, "min", version.min);
        json_out_u64(&b, "max", version.max);
        device_end(a, &b);
}

static void ask_driver_info(DeviceAsk *a) {
        static const char query[] = "driver_info";
        static const char *const features[] = {
                "DMABUF",         "ASYNC_DMA", "BATCH_DMAQ_INIT", "BIG_CORE_MAPS",
                "MEM_ALLOC_TYPE", "HBM_SCRUB", "MEM_ALLOC64",     "CONTIGUOUS_SCRATCHPAD",
                "ZEROCOPY",
        };
        /* Which version to ask for is not documented; the first one is the guess that an old and a new driver both know. */
        NeuronDriverInfo info = { .version = 0, .size = sizeof info };
        StrBuf b = STRBUF_INIT;

        if (!device_answers(a, query, NEURON_DRIVER_INFO_GET, &info))
                return;
        device_begin(a, &b, query);
        json_out_u64(&b, "architecture", info.architecture);
        json_out_u64(&b, "revision", info.revision);
        json_out_u64(&b, "version", info.version);
        json_out_u64(&b, "feature_flags", info.feature_flags);
        json_out_array(&b, "features");
        for (size_t i = 0; i < ELEMENTSOF(features); i++)
                if (info.feature_flags >> i & 1)
                        json_out_string(&b, NULL, features[i]);
        json_out_end_array(&b);
        device_end(a, &b);
}

static void ask_rid_map(DeviceAsk *a) {
        static const char query[] = "host_device_id_to_rid_map";
        NeuronRidMap map = { 0 };
        StrBuf b = STRBUF_INIT;

        if (!device_answers(a, query, NEURON_HOST_DEVICE_ID_TO_RID_MAP, &map))
                return;
        device_begin(a, &b, query);
        json_out_u64(&b, "count", map.count);
        json_out_array(&b, "rids");
        for (uint32_t i = 0; i < MIN(map.count, (uint32_t)NEURON_RIDS_MAX); i++)
                json_out_u64(&b, NULL, map.rid[i]);
        json_out_end_array(&b);
        device_end(a, &b);
}

static void ask_core_map(DeviceAsk *a) {
        static const char query[] = "logical_to_physical_nc_map";
        NeuronCoreMap map = { 0 };
        NeuronCoreMapRequest request = { .map = &map, .max_entries = NEURON_CORE_MAP_MAX };
        StrBuf b = STRBUF_INIT;

        if (!device_answers(a, query, NEURON_LOGICAL_TO_PHYSICAL, &request))
                return;
        device_begin(a, &b, query);
        json_out_u64(&b, "count", map.n_entries);
        json_out_array(&b, "device_and_core");
        for (uint32_t i = 0; i < MIN(map.n_entries, (uint32_t)NEURON_CORE_MAP_MAX); i++) {
                json_out_array(&b, NULL);
                json_out_u64(&b, NULL, map.entries[i].device_id);
                json_out_u64(&b, NULL, map.entries[i].core);
                json_out_end_array(&b);
        }
        json_out_end_array(&b);
        device_end(a, &b);
}

/* Whether it is text is not documented; hex is right for both. */
static void add_pod_id(StrBuf *b, const uint8_t id[static 256]) {
        char hex[2 * 256 + 1] = "";
        size_t n = 256;

        while (n > 0 && id[n - 1] == 0)
                n--;
        for (size_t i = 0; i < n; i++)
                (void)snprintf(hex + 2 * i, 3, "%02x", id[i]);
        json_out_string(b, "pod_id_hex", hex);
}

static void ask_pod_info(DeviceAsk *a) {
        static const char query[] = "pod_info";
        NeuronPodInfo info = { .size = sizeof info };
        StrBuf b = STRBUF_INIT;

        if (!device_answers(a, query, NEURON_POD_INFO, &info))
                return;
        device_begin(a, &b, query);
        json_out_u64(&b, "pod_type", info.type);
        json_out_u64(&b, "pod_size", info.n_nodes);
        add_pod_id(&b, info.id);
        device_end(a, &b);
}

static void ask_pod_status(DeviceAsk *a) {
        static const char query[] = "pod_status";
        NeuronPodStatus status = { .size = sizeof status };
        bool has_mode = device_ask(a, "pod_status_v2", NEURON_POD_STATUS_V2, &status) == 0;
        StrBuf b = STRBUF_INIT;

        if (!has_mode) {
                status = (NeuronPodStatus){ .size = NEURON_POD_STATUS_V1_SIZE };
                if (!device_answers(a, query, NEURON_POD_STATUS, &status))
                        return;
        }
        device_begin(a, &b, query);
        json_out_u64(&b, "state", status.state);
        json_out_u64(&b, "pod_type", status.type);
        json_out_u64(&b, "pod_size", status.n_nodes);
        json_out_i64(&b, "node_id", status.node_id);
        add_pod_id(&b, status.id);
        if (has_mode) {
                json_out_u64(&b, "mode", status.mode);
                json_out_u64(&b, "modes_supported", status.modes_supported);
        }
        device_end(a, &b);
}

void device_ask_node(DeviceAsk *a) {
        ask_compatible_version(a);
        ask_driver_info(a);
        ask_rid_map(a);
        ask_core_map(a);
        ask_pod_info(a);
        ask_pod_status(a);
        a->progress->is_done = true;
}
