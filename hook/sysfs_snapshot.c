#include "hook/sysfs_snapshot.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "collectors/runner/collector.h"
#include "hook/child_timeout.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"

#define TIER_BYTES_MAX (4 * MIB)
#define CHILD_MARGIN_USEC                                                                          \
        (20 * USEC_PER_MSEC) /* the collector's own end comes before we kill it  \
                                                */

typedef struct Tier {
        const char *sysfs_root;
        uint64_t until_usec;
        int fd;
} Tier;

static uint64_t remaining_usec(uint64_t until_usec) {
        uint64_t now = clock_boottime_usec();
        return now < until_usec ? until_usec - now : 0;
}

static int collect(void *userdata) {
        const Tier *t = userdata;
        char *no_patterns[] = { NULL };
        uint64_t left = remaining_usec(t->until_usec);
        CollectOrder order = { .sysfs_root = (char *)t->sysfs_root,
                               .device_directory = (char *)"/dev",
                               .proc_root = (char *)"/proc",
                               .environment = no_patterns,
                               .timeout_usec =
                                       left > CHILD_MARGIN_USEC ? left - CHILD_MARGIN_USEC : left,
                               .max_bytes = TIER_BYTES_MAX };
        CollectOut out = { .fd = t->fd, .dir_fd = -1, .max_bytes = TIER_BYTES_MAX };
        int r = collect_neuron_sysfs(&order, &out);
        return r == 0 && out.is_cut ? -EFBIG : r;
}

static const char *state_of(int result) {
        return result == 0            ? "complete"
               : result == -ETIMEDOUT ? "timeout"
               : result == -EFBIG     ? "cut"
                                      : "failed";
}

/* Complete lines become records; a line that was not ended is what the child was killed in. */
static void add_records(StrBuf *b, const char *text) {
        const char *newline;
        json_out_array(b, "records");
        for (bool is_first = true; (newline = strchr(text, '\n')); text = newline + 1) {
                if (newline == text)
                        continue;
                if (!is_first)
                        strbuf_add(b, ",");
                strbuf_add_n(b, text, (size_t)(newline - text));
                is_first = false;
        }
        json_out_end_array(b);
}

typedef struct Outcome {
        uint64_t start_usec, duration_usec; /* begun: CLOCK_REALTIME */
        int result;
        const char *text; /* the records */
} Outcome;

static void add_section(StrBuf *b, const Outcome *o) {
        char when[CLOCK_ISO_SIZE];
        json_out_object(b, NULL);
        json_out_string(b, "name", "neuron_sysfs");
        json_out_string(b, "state", state_of(o->result));
        json_out_string(b, "detail", o->result < 0 ? strerror(-o->result) : NULL);
        json_out_string(b, "begin", clock_format_iso(when, o->start_usec));
        json_out_u64(b, "duration_ms", o->duration_usec / USEC_PER_MSEC);
        json_out_array(b, "files"); /* as in the agent's documents: none */
        json_out_end_array(b);
        add_records(b, o->text);
        json_out_u64(b, "dropped_lines", 0);
        json_out_end_object(b);
}

static int compose(const Outcome *o, StrBuf *b) {
        char when[CLOCK_ISO_SIZE];
        json_out_object(b, NULL);
        json_out_string(b, "schema", "neuron-collectd/snapshot/1");
        json_out_object(b, "hook"); /* in the place of the agent */
        json_out_string(b, "version", PACKAGE_VERSION);
        json_out_end_object(b);
        json_out_string(b, "begin", clock_format_iso(when, o->start_usec));
        json_out_string(b, "end", clock_format_iso(when, o->start_usec + o->duration_usec));
        json_out_array(b, "sections");
        add_section(b, o);
        json_out_end_array(b);
        json_out_end_object(b);
        strbuf_add(b, "\n");
        return strbuf_error(b);
}

static bool has_devices(const char *sysfs_root) {
        char path[4096];
        struct stat st;
        int n = snprintf(path, sizeof path, "%s/devices/virtual/neuron_device", sysfs_root);
        return n > 0 && (size_t)n < sizeof path && stat(path, &st) == 0;
}

int sysfs_snapshot_collect(const char *sysfs_root, uint64_t until_usec, StrBuf *ret) {
        if (!has_devices(sysfs_root))
                return -ENODEV;
        _cleanup_close_ int fd = memfd_create("neuron-dump-tier", MFD_CLOEXEC);
        _cleanup_free_ char *text = NULL;
        size_t n;
        if (fd < 0)
                return -errno;
        Tier tier = { .sysfs_root = sysfs_root, .until_usec = until_usec, .fd = fd };
        TimedChild child;
        uint64_t start_usec = clock_realtime_usec(), began = clock_boottime_usec();
        child_timeout_start(&child, collect, &tier);
        int result = child_timeout_wait(&child, until_usec);
        int r = fs_read_head(fd, TIER_BYTES_MAX, &text, &n);
        if (r < 0)
                return r;
        return compose(&(Outcome){ start_usec, clock_boottime_usec() - began, result, text }, ret);
}
