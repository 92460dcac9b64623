/* The queries that are sent to a Neuron device, and a record for each answer.
 *
 * A query may hang in the driver. Its name is noted in shared memory before it is sent and cleared
 * after the answer, so that the collector can say what a killed part was waiting for. Which
 * commands may be sent is decided in neuron_ioctl.c; neuron_device.c runs and kills the parts. */
#include "collectors/neuron/device_queries.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "collectors/neuron/neuron_abi.h"
#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/json_out.h"
#include "lib/base/strbuf.h"

static int send_query(DeviceQuery *a, const char *query, uint32_t command, void *argument) {
        if (a->error < 0)
                return -ECANCELED;
        (void)snprintf(a->progress->pending_query, sizeof a->progress->pending_query, "%s", query);
        int r = neuron_ioctl_send(&a->device, command, argument);
        a->progress->pending_query[0] = '\0';
        return r;
}

static void write_record(DeviceQuery *a, StrBuf *b) {
        int r = collect_write_line(a->out_fd, b);

        if (r < 0 && a->error == 0)
                a->error = r;
        strbuf_done(b);
}

static void end_record(DeviceQuery *a, StrBuf *b) {
        json_out_end_object(b);
        json_out_end_object(b);
        write_record(a, b);
}

void device_queries_error(DeviceQuery *a, const char *query, int r) {
        StrBuf b = STRBUF_INIT;
        char text[128];

        if (a->error < 0)
                return;
        neuron_ioctl_error(text, sizeof text, r);
        json_out_object(&b, NULL);
        json_out_string(&b, "device", a->name);
        json_out_string(&b, "query", query);
        json_out_string(&b, "error", text);
        json_out_end_object(&b);
        write_record(a, &b);
}

/* @return whether the device has answered; the record then waits for values and end_record() */
static bool begin_record(DeviceQuery *a, StrBuf *b, const char *query, int result) {
        if (result != 0) {
                device_queries_error(a, query, result);
                return false;
        }
        json_out_object(b, NULL);
        json_out_string(b, "device", a->name);
        json_out_string(b, "query", query);
        json_out_object(b, "values");
        return true;
}

static bool begin_query(DeviceQuery *a, StrBuf *b, const char *query, uint32_t command,
                        void *argument) {
        return begin_record(a, b, query, send_query(a, query, command, argument));
}

static void query_basic_info(DeviceQuery *a) {
        NeuronBasicInfo info = { 0 };
        StrBuf b = STRBUF_INIT;

        if (!begin_query(a, &b, "device_basic_info", NEURON_DEVICE_BASIC_INFO, &info))
                return;
        json_out_u64(&b, "architecture", info.architecture);
        json_out_u64(&b, "revision", info.revision);
        end_record(a, &b);
}

static void query_bdf(DeviceQuery *a) {
        NeuronBdfExt bdf = { .nd_index = a->number };
        StrBuf b = STRBUF_INIT;
        char text[32];

        if (!begin_query(a, &b, "device_bdf_ext", NEURON_DEVICE_BDF_EXT, &bdf))
                return;
        (void)snprintf(text, sizeof text, "%04x:%02x:%02x.%x", bdf.domain, bdf.bus, bdf.slot,
                       bdf.function);
        json_out_string(&b, "pci_address", text);
        end_record(a, &b);
}

void device_queries_device(DeviceQuery *a) {
        query_basic_info(a);
        query_bdf(a);
}

/* ---- once a node ---- */

static void query_compatible_version(DeviceQuery *a) {
        NeuronCompatibleVersion version = { 0 };
        StrBuf b = STRBUF_INIT;

        if (!begin_query(a, &b, "compatible_version", NEURON_COMPATIBLE_VERSION, &version))
                return;
        json_out_u64(&b, "min", version.min);
        json_out_u64(&b, "max", version.max);
        end_record(a, &b);
}

static void query_driver_info(DeviceQuery *a) {
        static const char *const features[] = {
                "DMABUF",         "ASYNC_DMA", "BATCH_DMAQ_INIT", "BIG_CORE_MAPS",
                "MEM_ALLOC_TYPE", "HBM_SCRUB", "MEM_ALLOC64",     "CONTIGUOUS_SCRATCHPAD",
                "ZEROCOPY",
        };
        /* The driver does not document which version to request. Old and new drivers should both
         * know the first one. */
        NeuronDriverInfo info = { .version = 0, .size = sizeof info };
        StrBuf b = STRBUF_INIT;

        if (!begin_query(a, &b, "driver_info", NEURON_DRIVER_INFO_GET, &info))
                return;
        json_out_u64(&b, "architecture", info.architecture);
        json_out_u64(&b, "revision", info.revision);
        json_out_u64(&b, "version", info.version);
        json_out_u64(&b, "feature_flags", info.feature_flags);
        json_out_array(&b, "features");
        for (size_t i = 0; i < ELEMENTSOF(features); i++)
                if (info.feature_flags >> i & 1)
                        json_out_string(&b, NULL, features[i]);
        json_out_end_array(&b);
        end_record(a, &b);
}

static void query_rid_map(DeviceQuery *a) {
        NeuronRidMap map = { 0 };
        StrBuf b = STRBUF_INIT;

        if (!begin_query(a, &b, "host_device_id_to_rid_map", NEURON_HOST_DEVICE_ID_TO_RID_MAP,
                         &map))
                return;
        json_out_u64(&b, "count", map.count);
        json_out_array(&b, "rids");
        for (uint32_t i = 0; i < MIN(map.count, (uint32_t)NEURON_RIDS_MAX); i++)
                json_out_u64(&b, NULL, map.rid[i]);
        json_out_end_array(&b);
        end_record(a, &b);
}

static void query_core_map(DeviceQuery *a) {
        NeuronCoreMap map = { 0 };
        NeuronCoreMapRequest request = { .map = &map, .max_entries = NEURON_CORE_MAP_MAX };
        StrBuf b = STRBUF_INIT;

        if (!begin_query(a, &b, "logical_to_physical_nc_map", NEURON_LOGICAL_TO_PHYSICAL, &request))
                return;
        json_out_u64(&b, "count", map.n_entries);
        json_out_array(&b, "device_and_core");
        for (uint32_t i = 0; i < MIN(map.n_entries, (uint32_t)NEURON_CORE_MAP_MAX); i++) {
                json_out_array(&b, NULL);
                json_out_u64(&b, NULL, map.entries[i].device_id);
                json_out_u64(&b, NULL, map.entries[i].core);
                json_out_end_array(&b);
        }
        json_out_end_array(&b);
        end_record(a, &b);
}

/* The driver does not document whether an id is text. */
static void add_pod_id(StrBuf *b, const uint8_t id[static 256]) {
        char hex[2 * 256 + 1];
        size_t n = 256;

        while (n > 0 && id[n - 1] == 0)
                n--;
        json_out_string(b, "pod_id_hex", digest_hex(id, n, hex));
}

static void query_pod_info(DeviceQuery *a) {
        NeuronPodInfo info = { .size = sizeof info };
        StrBuf b = STRBUF_INIT;

        if (!begin_query(a, &b, "pod_info", NEURON_POD_INFO, &info))
                return;
        json_out_u64(&b, "pod_type", info.type);
        json_out_u64(&b, "pod_size", info.n_nodes);
        add_pod_id(&b, info.id);
        end_record(a, &b);
}

static void query_pod_status(DeviceQuery *a) {
        NeuronPodStatus status = { .size = sizeof status };
        int r = send_query(a, "pod_status_v2", NEURON_POD_STATUS_V2, &status);
        bool has_mode = r == 0;
        StrBuf b = STRBUF_INIT;

        if (!has_mode) {
                status = (NeuronPodStatus){ .size = NEURON_POD_STATUS_V1_SIZE };
                r = send_query(a, "pod_status", NEURON_POD_STATUS, &status);
        }
        if (!begin_record(a, &b, "pod_status", r))
                return;
        json_out_u64(&b, "state", status.state);
        json_out_u64(&b, "pod_type", status.type);
        json_out_u64(&b, "pod_size", status.n_nodes);
        json_out_i64(&b, "node_id", status.node_id);
        add_pod_id(&b, status.id);
        if (has_mode) {
                json_out_u64(&b, "mode", status.mode);
                json_out_u64(&b, "modes_supported", status.modes_supported);
        }
        end_record(a, &b);
}

void device_queries_node(DeviceQuery *a) {
        query_compatible_version(a);
        query_driver_info(a);
        query_rid_map(a);
        query_core_map(a);
        query_pod_info(a);
        query_pod_status(a);
}
