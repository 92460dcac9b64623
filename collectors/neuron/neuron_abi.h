/* The commands that are sent to the Neuron driver, in declarations of our own: literal command
 * numbers, and structures by their offsets (x86-64 and aarch64). Source: the sources of the drivers
 * 2.24.7.0 and 2.25.4.0. The driver declares most commands with the type of a pointer, so that the
 * size in the number is 8 whatever the structure's size is, and some directions are wrong: only the
 * numbers count. test_neuron_abi.c verifies numbers and offsets. Commands that only the runtime may
 * send are not declared. */
#pragma once

#include <assert.h>
#include <stdint.h>

static_assert(sizeof(void *) == 8, "a 32-bit process would compute other command numbers");

enum {
        NEURON_RIDS_MAX = 64,
        NEURON_CORE_MAP_MAX = 128,
};

/* ---- free access: the device is open O_WRONLY ---- */

#define NEURON_COMPATIBLE_VERSION 0x40084e5dU
typedef struct NeuronCompatibleVersion {
        uint32_t max, min; /* of the runtime's interface */
} NeuronCompatibleVersion;

#define NEURON_DEVICE_BASIC_INFO 0x40084e64U
typedef struct NeuronBasicInfo {
        uint32_t architecture; /* 2 v2, 3 v3, 4 v4, 0 invalid */
        uint32_t revision;
} NeuronBasicInfo;

#define NEURON_DEVICE_BDF_EXT 0x80084e6aU
typedef struct NeuronBdfExt {
        uint32_t nd_index; /* in */
        uint32_t domain, bus;
        uint8_t slot, function, reserved[2];
} NeuronBdfExt;

#define NEURON_DRIVER_INFO_GET 0x80184e6eU
typedef struct NeuronDriverInfo {
        uint32_t architecture, revision;
        uint32_t version, size; /* in */
        uint64_t feature_flags;
} NeuronDriverInfo;

#define NEURON_HOST_DEVICE_ID_TO_RID_MAP 0xc1044e73U
typedef struct NeuronRidMap {
        uint32_t count, rid[NEURON_RIDS_MAX];
} NeuronRidMap;

#define NEURON_LOGICAL_TO_PHYSICAL 0xc0104e78U
typedef struct NeuronCoreMap {
        uint32_t n_entries;
        struct {
                uint32_t device_id, core;
        } entries[NEURON_CORE_MAP_MAX];
} NeuronCoreMap;
typedef struct NeuronCoreMapRequest {
        NeuronCoreMap *map;
        uint32_t max_entries, version; /* in; version 0 */
} NeuronCoreMapRequest;

#define NEURON_POD_INFO 0xc1044e79U
typedef struct NeuronPodInfo {
        uint16_t size; /* in */
        uint8_t type, id[256], n_nodes;
} NeuronPodInfo;

#define NEURON_POD_STATUS 0xc10c4e7aU
#define NEURON_POD_STATUS_V2 0xc1144e7aU
typedef struct NeuronPodStatus {
        uint16_t size; /* in: 268 for the first form, which ends before `mode` */
        uint8_t id[256], reserved[2];
        uint32_t state; /* 0 not started, 1 in progress, 2 ultraserver, 3 failed, 4 single node */
        uint8_t type, n_nodes;
        int8_t node_id, reserved2;
        uint32_t mode, modes_supported;
} NeuronPodStatus;
enum { NEURON_POD_STATUS_V1_SIZE = 268 };
