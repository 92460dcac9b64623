/* The names of the runtime's error codes: one table, with the numbers of nrt_status.h of the Neuron
 * SDK 2.32, where 8 and 12 are unused. What a code means for a bundle is left to others. */
#include "lib/neuron/nrt_status.h"

#include <stddef.h>
#include <strings.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"

/* clang-format off */
static const struct StatusRow {
        int64_t code;
        const char *name;
} rows[] = {
        { 0,    "NRT_SUCCESS" },
        { 1,    "NRT_FAILURE" },
        { 2,    "NRT_INVALID" },
        { 3,    "NRT_INVALID_HANDLE" },
        { 4,    "NRT_RESOURCE" },
        { 5,    "NRT_TIMEOUT" },
        { 6,    "NRT_HW_ERROR" },
        { 7,    "NRT_QUEUE_FULL" },
        { 9,    "NRT_LOAD_NOT_ENOUGH_NC" },
        { 10,   "NRT_UNSUPPORTED_NEFF_VERSION" },
        { 11,   "NRT_FAIL_HOST_MEM_ALLOC" },
        { 13,   "NRT_UNINITIALIZED" },
        { 14,   "NRT_CLOSED" },
        { 15,   "NRT_QUEUE_EMPTY" },
        { 101,  "NRT_EXEC_UNIT_UNRECOVERABLE" },
        { 1002, "NRT_EXEC_BAD_INPUT" },
        { 1003, "NRT_EXEC_COMPLETED_WITH_NUM_ERR" },
        { 1004, "NRT_EXEC_COMPLETED_WITH_ERR" },
        { 1005, "NRT_EXEC_NC_BUSY" },
        { 1006, "NRT_EXEC_OOB" },
        { 1006, "NRT_OOB" }, /* as some documents print it */
        { 1100, "NRT_COLL_PENDING" },
        { 1200, "NRT_EXEC_HW_ERR_COLLECTIVES" },
        { 1201, "NRT_EXEC_HW_ERR_HBM_UE" },
        { 1202, "NRT_EXEC_HW_ERR_NC_UE" },
        { 1203, "NRT_EXEC_HW_ERR_DMA_ABORT" },
        { 1204, "NRT_EXEC_SW_NQ_OVERFLOW" },
        { 1205, "NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE" },
        { 1206, "NRT_NETWORK_PROXY_FAILURE" },
};
/* clang-format on */

const char *nrt_status_name(int64_t code) {
        for (size_t i = 0; i < ELEMENTSOF(rows); i++)
                if (rows[i].code == code)
                        return rows[i].name;
        return NULL;
}

bool nrt_status_parse(const char *s, int64_t *ret) {
        bool is_negative = s[0] == '-';
        uint64_t v;
        if (parse_u64_range(s + is_negative, 0, INT64_MAX, &v) == 0) {
                *ret = is_negative ? -(int64_t)v : (int64_t)v;
                return true;
        }
        for (size_t i = 0; i < ELEMENTSOF(rows); i++)
                if (strcasecmp(rows[i].name, s) == 0) {
                        *ret = rows[i].code;
                        return true;
                }
        return false;
}
