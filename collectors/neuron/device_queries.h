/* The queries that are sent to a Neuron device. */
#pragma once

#include <stdbool.h>

#include "collectors/neuron/neuron_ioctl.h"

enum {
        DEVICE_QUERY_SIZE = 64,
        DEVICE_LINE_BYTES_MAX = 64 << 10,
};

/** Shared with the collector, which can then report the query that a part hung on. */
typedef struct DeviceProgress {
        char pending_query[DEVICE_QUERY_SIZE]; /* without an answer yet; "": none */
        bool is_done;
} DeviceProgress;

/** One device, in its part. */
typedef struct DeviceQuery {
        const char *name; /* neuron3 */
        unsigned number;
        NeuronDevice device; /* open */
        DeviceProgress *progress;
        int out_fd; /* gets the records */
        int error;  /* the first failure of writing a record: no query follows */
} DeviceQuery;

/** Sends the queries about this device. */
void device_queries_device(DeviceQuery *a);
/** Sends the queries about the whole node, which any device answers. */
void device_queries_node(DeviceQuery *a);
/** Writes the record of a query that failed. @param r  as neuron_ioctl_error() has it */
void device_queries_error(DeviceQuery *a, const char *query, int r);
