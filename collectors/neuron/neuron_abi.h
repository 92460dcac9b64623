/* The commands of the Neuron driver that are sent, in our own declarations: literal command
 * numbers, and structures by their offsets (x86-64 and aarch64). Facts: the driver's sources, which
 * has them from the driver 2.24.7.0 and 2.25.4.0. The driver declares most commands with a
 * pointer's type, so that the size in the number is 8 whatever the structure's, and some directions
 * are wrong: the numbers are what counts, the expressions beside them only prove that they were
 * copied well. Commands that nobody but the runtime may send are not here at all. */
#pragma once

#include <assert.h>
#include <linux/ioctl.h>
#include <stddef.h>
#include <stdint.h>

static_assert(sizeof(void *) == 8, "a 32-bit process would compute other command numbers");

#define NEURON_ABI_COMMAND(direction, nr, size) _IOC(direction, 'N', nr, size)
#define NEURON_ABI_POINTER sizeof(void *)

enum {
        NEURON_RIDS_MAX = 64,
        NEURON_CORE_MAP_MAX = 128,
};

/* ---- free access: the device is open O_WRONLY ---- */

#define NEURON_COMPATIBLE_VERSION 0x40084e5dU
static_assert(NEURON_COMPATIBLE_VERSION == NEURON_ABI_COMMAND(_IOC_WRITE, 93, NEURON_ABI_POINTER),
              "");
typedef struct NeuronCompatibleVersion {
        uint32_t max, min; /* of the runtime's interface */
} NeuronCompatibleVersion;
static_assert(sizeof(NeuronCompatibleVersion) == 8 && offsetof(NeuronCompatibleVersion, min) == 4,
              "");

#define NEURON_DEVICE_BASIC_INFO 0x40084e64U
static_assert(NEURON_DEVICE_BASIC_INFO == NEURON_ABI_COMMAND(_IOC_WRITE, 100, NEURON_ABI_POINTER),
              "");
typedef struct NeuronBasicInfo {
        uint32_t architecture; /* 2 v2, 3 v3, 4 v4, 0 invalid */
        uint32_t revision;
} NeuronBasicInfo;
static_assert(sizeof(NeuronBasicInfo) == 8 && offsetof(NeuronBasicInfo, revision) == 4, "");

#define NEURON_DEVICE_BDF_EXT 0x80084e6aU
static_assert(NEURON_DEVICE_BDF_EXT == NEURON_ABI_COMMAND(_IOC_READ, 106, NEURON_ABI_POINTER), "");
typedef struct NeuronBdfExt {
        uint32_t nd_index; /* in */
        uint32_t domain, bus;
        uint8_t slot, function, reserved[2];
} NeuronBdfExt;
static_assert(sizeof(NeuronBdfExt) == 16 && offsetof(NeuronBdfExt, bus) == 8 &&
                      offsetof(NeuronBdfExt, slot) == 12 && offsetof(NeuronBdfExt, function) == 13,
              "");

#define NEURON_DRIVER_INFO_GET 0x80184e6eU
typedef struct NeuronDriverInfo {
        uint32_t architecture, revision;
        uint32_t version, size; /* in */
        uint64_t feature_flags;
} NeuronDriverInfo;
static_assert(NEURON_DRIVER_INFO_GET ==
                      NEURON_ABI_COMMAND(_IOC_READ, 110, sizeof(NeuronDriverInfo)),
              "");
static_assert(sizeof(NeuronDriverInfo) == 24 && offsetof(NeuronDriverInfo, version) == 8 &&
                      offsetof(NeuronDriverInfo, size) == 12 &&
                      offsetof(NeuronDriverInfo, feature_flags) == 16,
              "");

#define NEURON_HOST_DEVICE_ID_TO_RID_MAP 0xc1044e73U
typedef struct NeuronRidMap {
        uint32_t count, rid[NEURON_RIDS_MAX];
} NeuronRidMap;
static_assert(NEURON_HOST_DEVICE_ID_TO_RID_MAP ==
                      NEURON_ABI_COMMAND(_IOC_READ | _IOC_WRITE, 115, sizeof(NeuronRidMap)),
              "");
static_assert(sizeof(NeuronRidMap) == 260 && offsetof(NeuronRidMap, rid) == 4, "");

#define NEURON_LOGICAL_TO_PHYSICAL 0xc0104e78U
typedef struct NeuronCoreMap {
        uint32_t n_entries;
        struct {
                uint32_t device_id, core;
        } entries[NEURON_CORE_MAP_MAX];
} NeuronCoreMap;
static_assert(offsetof(NeuronCoreMap, entries) == 4 &&
                      sizeof(((NeuronCoreMap *)NULL)->entries[0]) == 8,
              "");
typedef struct NeuronCoreMapRequest {
        NeuronCoreMap *map;
        uint32_t max_entries, version; /* in; version 0 */
} NeuronCoreMapRequest;
static_assert(NEURON_LOGICAL_TO_PHYSICAL ==
                      NEURON_ABI_COMMAND(_IOC_READ | _IOC_WRITE, 120, sizeof(NeuronCoreMapRequest)),
              "");
static_assert(sizeof(NeuronCoreMapRequest) == 16 &&
                      offsetof(NeuronCoreMapRequest, max_entries) == 8 &&
                      offsetof(NeuronCoreMapRequest, version) == 12,
              "");

#define NEURON_POD_INFO 0xc1044e79U
typedef struct NeuronPodInfo {
        uint16_t size; /* in */
        uint8_t type, id[256], n_nodes;
} NeuronPodInfo;
static_assert(NEURON_POD_INFO ==
                      NEURON_ABI_COMMAND(_IOC_READ | _IOC_WRITE, 121, sizeof(NeuronPodInfo)),
              "");
static_assert(sizeof(NeuronPodInfo) == 260 && offsetof(NeuronPodInfo, type) == 2 &&
                      offsetof(NeuronPodInfo, id) == 3 && offsetof(NeuronPodInfo, n_nodes) == 259,
              "");

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
static_assert(NEURON_POD_STATUS ==
                      NEURON_ABI_COMMAND(_IOC_READ | _IOC_WRITE, 122, NEURON_POD_STATUS_V1_SIZE),
              "");
static_assert(NEURON_POD_STATUS_V2 ==
                      NEURON_ABI_COMMAND(_IOC_READ | _IOC_WRITE, 122, sizeof(NeuronPodStatus)),
              "");
static_assert(sizeof(NeuronPodStatus) == 276 && offsetof(NeuronPodStatus, id) == 2 &&
                      offsetof(NeuronPodStatus, state) == 260 &&
                      offsetof(NeuronPodStatus, type) == 264 &&
                      offsetof(NeuronPodStatus, n_nodes) == 265 &&
                      offsetof(NeuronPodStatus, node_id) == 266 &&
                      offsetof(NeuronPodStatus, mode) == NEURON_POD_STATUS_V1_SIZE &&
                      offsetof(NeuronPodStatus, modes_supported) == 272,
              "");
