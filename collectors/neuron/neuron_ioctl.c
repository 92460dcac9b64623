/* The only file that opens Neuron devices or sends them commands.
 *
 * A device is opened for writing only: the driver gives such an opening no process slot, and allows
 * it only commands that need none. Of these, only those of the table below are sent, each only to
 * drivers that have it: an old driver may take an unknown number for another command. Every command
 * of the table only reads. neuron_abi.h has the numbers and structures.
 *
 * Whether a device may be opened at all is decided in device_access.c; the queries are in
 * device_queries.c. */
#include "collectors/neuron/neuron_ioctl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/neuron/neuron_abi.h"
#include "lib/base/cleanup.h"

typedef struct NeuronCommand {
        uint32_t number;
        NeuronVersion since; /* zero: every driver has it */
} NeuronCommand;

/* Commands that change nothing, and that need no attach to the device. */
/* clang-format off */
static const NeuronCommand commands[] = {
        { NEURON_COMPATIBLE_VERSION,        { { 0, 0, 0 } } },
        { NEURON_DEVICE_BASIC_INFO,         { { 2, 1, 5 } } },
        { NEURON_DEVICE_BDF_EXT,            { { 2, 9, 4 } } },
        { NEURON_DRIVER_INFO_GET,           { { 2, 12, 11 } } },
        { NEURON_HOST_DEVICE_ID_TO_RID_MAP, { { 2, 16, 7 } } },
        { NEURON_LOGICAL_TO_PHYSICAL,       { { 2, 19, 64 } } },
        { NEURON_POD_INFO,                  { { 2, 19, 64 } } },
        { NEURON_POD_STATUS,                { { 2, 19, 64 } } },
        { NEURON_POD_STATUS_V2,             { { 2, 23, 9 } } },
};
/* clang-format on */

bool neuron_version_parse(const char *text, NeuronVersion *ret) {
        NeuronVersion v;

        if (sscanf(text, "%4u.%4u.%4u", &v.part[0], &v.part[1], &v.part[2]) != 3)
                return false;
        *ret = v;
        return true;
}

int neuron_version_compare(const NeuronVersion *a, const NeuronVersion *b) {
        for (size_t i = 0; i < ELEMENTSOF(a->part); i++)
                if (a->part[i] != b->part[i])
                        return a->part[i] < b->part[i] ? -1 : 1;
        return 0;
}

static bool version_is_known(const NeuronVersion *v) {
        return neuron_version_compare(v, &(NeuronVersion){ { 0, 0, 0 } }) != 0;
}

int neuron_ioctl_open(NeuronDevice *d, const char *directory, const char *name) {
        _cleanup_close_ int dir_fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
        struct stat st;

        if (dir_fd < 0)
                return -errno;
        if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        if (S_ISLNK(st.st_mode))
                return -ELOOP;
        if (!S_ISCHR(st.st_mode) && !S_ISREG(st.st_mode)) /* tests have regular files */
                return -EINVAL;
        int fd = openat(dir_fd, name, O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
                return -errno;
        d->fd = fd;
        return 0;
}

void neuron_ioctl_close(NeuronDevice *d) {
        if (d->fd >= 0)
                (void)close(d->fd); /* nothing was written through it */
        d->fd = -1;
}

static const NeuronCommand *command_find(uint32_t number) {
        for (size_t i = 0; i < ELEMENTSOF(commands); i++)
                if (commands[i].number == number)
                        return &commands[i];
        return NULL;
}

int neuron_ioctl_send(NeuronDevice *d, uint32_t command, void *argument) {
        const NeuronCommand *c = command_find(command);

        if (!c)
                return -EPERM;
        if (version_is_known(&d->driver) && neuron_version_compare(&d->driver, &c->since) < 0)
                return -EOPNOTSUPP;
        int r = ioctl(d->fd, (unsigned long)command, argument);
        return r < 0 ? -errno : r;
}

void neuron_ioctl_error(char *text, size_t size, int r) {
        const char *name = strerrorname_np(-r), *description = strerrordesc_np(-r);

        if (r > 0)
                (void)snprintf(text, size, "the driver returned %d, an unexpected value", r);
        else if (r == -EOPNOTSUPP)
                (void)snprintf(text, size, "not requested: this driver does not have it");
        else if (r == -ECANCELED)
                (void)snprintf(text, size,
                               "not opened: no process uses a device any more, and "
                               "opening one could reset the server's election");
        else
                (void)snprintf(text, size, "%s: %s", name ? name : "error",
                               description ? description : "unknown");
}
