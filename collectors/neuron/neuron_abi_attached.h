/* As neuron_abi.h: what only an attached reader asks. */
#pragma once

#include "collectors/neuron/neuron_abi.h"

/* ---- attached: the device is open O_RDONLY ---- */

#define NEURON_DEVICE_INFO 0x80084e03U
static_assert(NEURON_DEVICE_INFO == NEURON_ABI_COMMAND(_IOC_READ, 3, NEURON_ABI_POINTER), "");
typedef struct NeuronDeviceInfo {
        uint32_t architecture, revision, n_connected, connected[8];
        uint64_t bar_address[2]; /* the kernel's own addresses: never shown */
        uint64_t bar_size[2];
} NeuronDeviceInfo;
static_assert(sizeof(NeuronDeviceInfo) == 80 && offsetof(NeuronDeviceInfo, n_connected) == 8 &&
                      offsetof(NeuronDeviceInfo, connected) == 12 &&
                      offsetof(NeuronDeviceInfo, bar_address) == 48 &&
                      offsetof(NeuronDeviceInfo, bar_size) == 64,
              "");

#define NEURON_ALL_APPS_INFO 0x80084e07U
static_assert(NEURON_ALL_APPS_INFO == NEURON_ABI_COMMAND(_IOC_READ, 7, NEURON_ABI_POINTER), "");
typedef struct NeuronApp {
        int32_t pid;                     /* as the machine's first pid namespace counts */
        uint8_t core_locks, uuid[4][32]; /* cores 0 … 3 only */
        uint64_t host_bytes, device_bytes;
} NeuronApp;
static_assert(sizeof(NeuronApp) == 152 && offsetof(NeuronApp, core_locks) == 4 &&
                      offsetof(NeuronApp, uuid) == 5 && offsetof(NeuronApp, host_bytes) == 136 &&
                      offsetof(NeuronApp, device_bytes) == 144,
              "");
enum { NEURON_APPS_ALL = 0xf };
typedef struct NeuronApps {
        uint16_t flags; /* in: what is wanted */
        uint32_t capacity, n_entries;
        NeuronApp entries[NEURON_APPS_MAX];
} NeuronApps;
static_assert(offsetof(NeuronApps, capacity) == 4 && offsetof(NeuronApps, n_entries) == 8 &&
                      offsetof(NeuronApps, entries) == 16,
              "");

#define NEURON_DMA_ENG_GET_STATE 0xc0084e20U
static_assert(NEURON_DMA_ENG_GET_STATE ==
                      NEURON_ABI_COMMAND(_IOC_READ | _IOC_WRITE, 32, NEURON_ABI_POINTER),
              "");
enum NeuronDmaState {
        NEURON_DMA_DISABLE,
        NEURON_DMA_IDLE,
        NEURON_DMA_NORMAL,
        NEURON_DMA_ABORT,
        NEURON_DMA_RESET
};
typedef struct NeuronDmaEngineState {
        uint32_t revision_id, max_queues, n_queues, tx_state, rx_state;
} NeuronDmaEngineState;
static_assert(sizeof(NeuronDmaEngineState) == 20 && offsetof(NeuronDmaEngineState, n_queues) == 8 &&
                      offsetof(NeuronDmaEngineState, tx_state) == 12,
              "");
typedef struct NeuronDmaEngine {
        uint32_t engine; /* in; the driver takes 34 … 131 on v2 and reads what is not there */
        NeuronDmaEngineState *state;
} NeuronDmaEngine;
static_assert(sizeof(NeuronDmaEngine) == 16 && offsetof(NeuronDmaEngine, state) == 8, "");

#define NEURON_DMA_QUEUE_GET_STATE 0xc0084e25U
static_assert(NEURON_DMA_QUEUE_GET_STATE ==
                      NEURON_ABI_COMMAND(_IOC_READ | _IOC_WRITE, 37, NEURON_ABI_POINTER),
              "");
typedef struct NeuronDmaQueueState {
        uint32_t hw_status, sw_status; /* sw: 1 disabled, 2 enabled, 3 aborted */
        uint64_t base;
        uint32_t length, head, tail;
        uint64_t completion_base;
        uint32_t completion_head;
} NeuronDmaQueueState;
static_assert(sizeof(NeuronDmaQueueState) == 48 && offsetof(NeuronDmaQueueState, base) == 8 &&
                      offsetof(NeuronDmaQueueState, length) == 16 &&
                      offsetof(NeuronDmaQueueState, tail) == 24 &&
                      offsetof(NeuronDmaQueueState, completion_base) == 32 &&
                      offsetof(NeuronDmaQueueState, completion_head) == 40,
              "");
typedef struct NeuronDmaQueue {
        uint32_t engine, queue; /* in; the driver checks neither */
        NeuronDmaQueueState *tx, *rx;
} NeuronDmaQueue;
static_assert(sizeof(NeuronDmaQueue) == 24 && offsetof(NeuronDmaQueue, queue) == 4 &&
                      offsetof(NeuronDmaQueue, tx) == 8 && offsetof(NeuronDmaQueue, rx) == 16,
              "");

#define NEURON_SEMAPHORE_READ 0xc0084e2bU
static_assert(NEURON_SEMAPHORE_READ ==
                      NEURON_ABI_COMMAND(_IOC_READ | _IOC_WRITE, 43, NEURON_ABI_POINTER),
              "");
#define NEURON_EVENT_GET 0xc0084e2eU
static_assert(NEURON_EVENT_GET ==
                      NEURON_ABI_COMMAND(_IOC_READ | _IOC_WRITE, 46, NEURON_ABI_POINTER),
              "");
typedef struct NeuronCoreValue {
        uint32_t core, index; /* in; of an event the driver does not check the core */
        uint32_t value;
} NeuronCoreValue;
static_assert(sizeof(NeuronCoreValue) == 12 && offsetof(NeuronCoreValue, index) == 4 &&
                      offsetof(NeuronCoreValue, value) == 8,
              "");

#define NEURON_MODEL_STARTED_COUNT 0x40084e5cU
static_assert(NEURON_MODEL_STARTED_COUNT == NEURON_ABI_COMMAND(_IOC_WRITE, 92, NEURON_ABI_POINTER),
              "");
typedef struct NeuronModelStarted {
        uint32_t core; /* in */
        uint64_t count;
} NeuronModelStarted;
static_assert(sizeof(NeuronModelStarted) == 16 && offsetof(NeuronModelStarted, count) == 8, "");

#define NEURON_ACQUIRE_DATASTORE 0x80084e47U
#define NEURON_RELEASE_DATASTORE 0x80084e48U
static_assert(NEURON_ACQUIRE_DATASTORE == NEURON_ABI_COMMAND(_IOC_READ, 71, NEURON_ABI_POINTER),
              "");
static_assert(NEURON_RELEASE_DATASTORE == NEURON_ABI_COMMAND(_IOC_READ, 72, NEURON_ABI_POINTER),
              "");
typedef struct NeuronDatastore {
        int32_t pid; /* in */
        uint64_t mmap_offset;
        uint32_t size;
} NeuronDatastore;
static_assert(sizeof(NeuronDatastore) == 24 && offsetof(NeuronDatastore, mmap_offset) == 8 &&
                      offsetof(NeuronDatastore, size) == 16,
              "");

/* A datastore: counters of one process on one device, each a uint64_t (neuron-interfaces 3.7). */
enum {
        NEURON_STORE_BYTES = 256 << 10,
        NEURON_STORE_DEVICE_COUNTERS = 31,
        NEURON_STORE_DEVICE_AT = 8,
        NEURON_STORE_CORE_COUNTERS = 31,
        NEURON_STORE_CORES_AT = 256, /* cores 0 … 3 */
        NEURON_STORE_FURTHER_COUNTERS = 64,
        NEURON_STORE_FURTHER_AT = 55936, /* cores 0 … 3 */
        NEURON_STORE_HIGH_CORES_AT =
                57984, /* cores 4 … 15, 96 counters each: the first 31 as those of cores 0 … 3 [inferred], the others unnamed */
        NEURON_STORE_HIGH_COUNTERS = 96,
        NEURON_STORE_LOW_CORES = 4,
};
static_assert(NEURON_STORE_FURTHER_AT +
                              NEURON_STORE_LOW_CORES * NEURON_STORE_FURTHER_COUNTERS * 8 ==
                      NEURON_STORE_HIGH_CORES_AT,
              "");
