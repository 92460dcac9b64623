/* The counters that a process keeps in the driver for a device (neuron-interfaces 3.7): mapped for reading only, since the driver would let us write into
 * what a living process uses; copied; given back. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "collectors/neuron/neuron_abi_attached.h"
#include "collectors/neuron/neuron_device.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"

enum {
        STORE_CORES_MAX = 16,
        COPY_BYTES = 4096, /* a pipe holds as much, whatever its user's limits */
};

/* NULL: not named in public. */
static const char *const device_names[NEURON_STORE_DEVICE_COUNTERS] = {
        [0] = "RUNTIME_VERSION",    [1] = "FRAMEWORK_VERSION", [2] = "FAL_VERSION",
        [3] = "FEATURE_BITMAP",     [4] = "MIN_NEFF_VERSION",  [5] = "MAX_NEFF_VERSION",
        [12] = "DEVICE_CLUSTER_ID",
};
static const char *const core_names[NEURON_STORE_CORE_COUNTERS] = {
        [0] = "TIME_IN_USE",
        [1] = "INFER_COMPLETED",
        [2] = "INFER_COMPLETED_WITH_ERR",
        [3] = "INFER_COMPLETED_WITH_NUM_ERR",
        [4] = "INFER_TIMED_OUT",
        [5] = "INFER_INCORRECT_INPUT",
        [6] = "INFER_FAILED_TO_QUEUE",
        [7] = "ERR_GENERIC",
        [8] = "ERR_NUMERICAL",
        [9] = "ERR_MODEL",
        [10] = "ERR_TRANSIENT",
        [11] = "ERR_HW",
        [12] = "ERR_RT",
        [13] = "LATENCY_DEVICE",
        [14] = "LATENCY_TOTAL",
        [15] = "NC_TIME",
        [16] = "GENERIC_FAIL",
        [17] = "RESOURCE",
        [18] = "RESOURCE_NC",
        [19] = "INVALID",
        [20] = "UNSUPPORTED_NEFF",
        [21] = "CC_TIME",
        [27] = "MODEL_LOAD_COUNT",
        [28] = "INFERENCE_COUNT",
        [29] = "MAC_COUNT",
        [30] = "OOB",
};
static const char *const further_names[] = {
        "HW_ERR_COLLECTIVES", "HBM_UE", "NC_UE",          "DMA_ABORT",       "SW_NQ_OVERFLOW",
        "SEMAPHORE",          "EVENT",  "PSUM_COLLISION", "SEQUENCER_FATAL", "REPAIRABLE_HBM_UE",
};

typedef struct Names {
        const char *const *names;
        size_t n_names;
        const char *prefix; /* of those that have no name: with their index */
} Names;

static void add_counters(StrBuf *b, const uint8_t *at, size_t n, const Names *names) {
        for (size_t i = 0; i < n; i++) {
                const char *name = i < names->n_names ? names->names[i] : NULL;
                char unnamed[32];
                uint64_t value;

                memcpy(&value, at + i * sizeof value, sizeof value);
                if (value == 0)
                        continue;
                (void)snprintf(unnamed, sizeof unnamed, "%s%zu", names->prefix, i);
                json_out_u64(b, name ? name : unnamed, value);
        }
}

static void add_core(StrBuf *b, const uint8_t *data, uint32_t core) {
        static const Names base = { core_names, ELEMENTSOF(core_names), "core_" };
        static const Names further = { further_names, ELEMENTSOF(further_names), "further_" };
        static const Names rest = { NULL, 0, "unnamed_" };
        const uint8_t *at;

        if (core < NEURON_STORE_LOW_CORES) {
                add_counters(b,
                             data + NEURON_STORE_CORES_AT +
                                     (size_t)core * NEURON_STORE_CORE_COUNTERS * 8,
                             NEURON_STORE_CORE_COUNTERS, &base);
                add_counters(b,
                             data + NEURON_STORE_FURTHER_AT +
                                     (size_t)core * NEURON_STORE_FURTHER_COUNTERS * 8,
                             NEURON_STORE_FURTHER_COUNTERS, &further);
                return;
        }
        at = data + NEURON_STORE_HIGH_CORES_AT +
             (size_t)(core - NEURON_STORE_LOW_CORES) * NEURON_STORE_HIGH_COUNTERS * 8;
        add_counters(b, at, NEURON_STORE_CORE_COUNTERS, &base);
        add_counters(b, at + NEURON_STORE_CORE_COUNTERS * 8,
                     NEURON_STORE_HIGH_COUNTERS - NEURON_STORE_CORE_COUNTERS, &rest);
}

int device_add_datastore(StrBuf *b, const uint8_t *data, uint32_t n_cores) {
        static const Names device = { device_names, ELEMENTSOF(device_names), "device_" };

        if (memcmp(data, "nds", sizeof "nds") != 0)
                return -EBADMSG;
        json_out_object(b, "device_counters");
        add_counters(b, data + NEURON_STORE_DEVICE_AT, NEURON_STORE_DEVICE_COUNTERS, &device);
        json_out_end_object(b);
        json_out_array(b, "core_counters");
        for (uint32_t i = 0; i < MIN(n_cores, (uint32_t)STORE_CORES_MAX); i++) {
                json_out_object(b, NULL);
                add_core(b, data, i);
                json_out_end_object(b);
        }
        json_out_end_array(b);
        return 0;
}

/* Copies by way of a pipe: where the mapping turns out to have nothing behind it, write(2) says EFAULT, whereas a read of ours would end the process.
 * @return 0 or -errno */
static int copy_mapping(const uint8_t *map, uint8_t *data) {
        _cleanup_close_ int read_fd = -1, write_fd = -1;
        int fds[2], r = 0;

        if (pipe2(fds, O_CLOEXEC) < 0)
                return -errno;
        read_fd = fds[0];
        write_fd = fds[1];
        for (size_t at = 0; at < NEURON_STORE_BYTES && r >= 0; at += COPY_BYTES) {
                r = fs_write_all(write_fd, map + at, COPY_BYTES);
                if (r >= 0 && read(read_fd, data + at, COPY_BYTES) != COPY_BYTES)
                        r = -EIO; /* cannot be: it was written whole, and is no more than a page */
        }
        return r;
}

/* @param data  gets NEURON_STORE_BYTES @return 0 or -errno */
static int copy_store(DeviceAsk *a, const NeuronDatastore *store, uint8_t *data) {
        void *map;
        int r;

        if (store->size < NEURON_STORE_BYTES || store->mmap_offset > INT64_MAX)
                return -EBADMSG; /* not the layout that we know */
        (void)snprintf(a->progress->asking, sizeof a->progress->asking, "mapped datastore");
        map = mmap(NULL, NEURON_STORE_BYTES, PROT_READ, MAP_SHARED, a->device.fd,
                   (off_t)store->mmap_offset);
        if (map == MAP_FAILED)
                return -errno;
        r = copy_mapping(map, data);
        (void)munmap(map, NEURON_STORE_BYTES); /* ours: cannot fail */
        a->progress->asking[0] = '\0';
        return r;
}

void device_ask_datastore(DeviceAsk *a, int pid) {
        static const char query[] = "datastore";
        _cleanup_free_ uint8_t *data = malloc(NEURON_STORE_BYTES);
        NeuronDatastore store = { .pid = pid };
        StrBuf b = STRBUF_INIT;
        int r;

        if (!data) {
                device_say_error(a, query, -ENOMEM);
                return;
        }
        if (!device_answers(a, query, NEURON_ACQUIRE_DATASTORE, &store))
                return;
        r = copy_store(a, &store, data);
        store.pid = pid; /* whatever the driver made of it */
        (void)device_answers(a, "datastore_release", NEURON_RELEASE_DATASTORE, &store);
        if (r == 0) {
                device_begin(a, &b, query);
                json_out_i64(&b, "pid", pid);
                r = device_add_datastore(&b, data, neuron_cores(a->device.architecture));
        }
        if (r == 0)
                device_end(a, &b);
        else
                device_say_error(a, query, r);
        strbuf_done(&b);
}
