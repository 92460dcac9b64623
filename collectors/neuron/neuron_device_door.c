/* What may be sent, and the bounds. */
#include "collectors/neuron/neuron_device_door.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/neuron/neuron_abi_attached.h"
#include "lib/base/cleanup.h"

const NeuronVersion neuron_version_attached = { { 2, 26, 5 } };

typedef struct Command {
        uint32_t number;
        bool needs_attach;
        NeuronVersion since; /* 0 = of old */
} Command;

/* Whoever adds a row has read neuron-interfaces 3.4: classes F and R only. */
/* clang-format off */
static const Command commands[] = {
        { NEURON_COMPATIBLE_VERSION,        false, { { 0, 0, 0 } } },
        { NEURON_DEVICE_BASIC_INFO,         false, { { 2, 1, 5 } } },
        { NEURON_DEVICE_BDF_EXT,            false, { { 2, 9, 4 } } },
        { NEURON_DRIVER_INFO_GET,           false, { { 2, 12, 11 } } },
        { NEURON_HOST_DEVICE_ID_TO_RID_MAP, false, { { 2, 16, 7 } } },
        { NEURON_LOGICAL_TO_PHYSICAL,       false, { { 2, 19, 64 } } },
        { NEURON_POD_INFO,                  false, { { 2, 19, 64 } } },
        { NEURON_POD_STATUS,                false, { { 2, 19, 64 } } },
        { NEURON_POD_STATUS_V2,             false, { { 2, 23, 9 } } },
        { NEURON_DEVICE_INFO,               true,  { { 2, 26, 5 } } },
        { NEURON_ALL_APPS_INFO,             true,  { { 2, 26, 5 } } },
        { NEURON_DMA_ENG_GET_STATE,         true,  { { 2, 26, 5 } } },
        { NEURON_DMA_QUEUE_GET_STATE,       true,  { { 2, 26, 5 } } },
        { NEURON_SEMAPHORE_READ,            true,  { { 2, 26, 5 } } },
        { NEURON_EVENT_GET,                 true,  { { 2, 26, 5 } } },
        { NEURON_MODEL_STARTED_COUNT,       true,  { { 2, 26, 5 } } },
        { NEURON_ACQUIRE_DATASTORE,         true,  { { 2, 26, 5 } } },
        { NEURON_RELEASE_DATASTORE,         true,  { { 2, 26, 5 } } },
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

uint32_t neuron_cores(uint32_t architecture) {
        return architecture == 2 ? 2 : architecture == 3 || architecture == 4 ? 8 : 0;
}

uint32_t neuron_dma_engines(uint32_t architecture) {
        return architecture == 2 ? 34 : architecture == 3 || architecture == 4 ? 132 : 0;
}

int neuron_open(NeuronDevice *d, const char *directory, const char *name, bool is_attached) {
        _cleanup_close_ int dir_fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
        struct stat st;
        int fd;

        if (dir_fd < 0)
                return -errno;
        if (is_attached && (neuron_version_compare(&d->driver, &neuron_version_attached) < 0 ||
                            neuron_cores(d->architecture) == 0))
                return -EPERM;
        if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        if (S_ISLNK(st.st_mode))
                return -ELOOP;
        if (!S_ISCHR(st.st_mode) && !S_ISREG(st.st_mode))
                return -EINVAL;
        fd = openat(dir_fd, name,
                    (is_attached ? O_RDONLY : O_WRONLY) | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
                return -errno;
        d->fd = fd;
        d->is_attached = is_attached;
        d->n_queues = 0;
        return 0;
}

void neuron_close(NeuronDevice *d) {
        if (d->fd >= 0)
                (void)close(d->fd); /* nothing was written through it */
        d->fd = -1;
}

static const Command *command_find(uint32_t number) {
        for (size_t i = 0; i < ELEMENTSOF(commands); i++)
                if (commands[i].number == number)
                        return &commands[i];
        return NULL;
}

static bool core_value_is_within(const NeuronDevice *d, const NeuronCoreValue *v, uint32_t end) {
        return v->core < neuron_cores(d->architecture) && v->index < end;
}

static bool is_within_bounds(const NeuronDevice *d, uint32_t command, const void *argument) {
        switch (command) {
        case NEURON_DMA_ENG_GET_STATE: {
                const NeuronDmaEngine *e = argument;
                return e->engine < neuron_dma_engines(d->architecture);
        }
        case NEURON_DMA_QUEUE_GET_STATE: {
                const NeuronDmaQueue *q = argument;
                return q->engine == d->engine && q->queue < d->n_queues;
        }
        case NEURON_SEMAPHORE_READ:
                return core_value_is_within(d, argument, NEURON_SEMAPHORES);
        case NEURON_EVENT_GET:
                return core_value_is_within(d, argument, NEURON_EVENTS);
        case NEURON_MODEL_STARTED_COUNT:
                return ((const NeuronModelStarted *)argument)->core < neuron_cores(d->architecture);
        case NEURON_ACQUIRE_DATASTORE:
        case NEURON_RELEASE_DATASTORE:
                return ((const NeuronDatastore *)argument)->pid >
                       0; /* 0 would make one of our own */
        default:
                return true;
        }
}

static bool direction_has_queues(uint32_t state) {
        return state == NEURON_DMA_IDLE || state == NEURON_DMA_NORMAL || state == NEURON_DMA_ABORT;
}

/* From here on the queues that this engine has may be asked, until another engine is. */
static void note_engine(NeuronDevice *d, const NeuronDmaEngine *e) {
        if (!direction_has_queues(e->state->tx_state) || !direction_has_queues(e->state->rx_state))
                return;
        d->engine = e->engine;
        d->n_queues = MIN(e->state->n_queues, (uint32_t)NEURON_QUEUES_MAX);
}

int neuron_ioctl(NeuronDevice *d, uint32_t command, void *argument) {
        const Command *c = command_find(command);
        int r;

        if (!c || c->needs_attach != d->is_attached)
                return -EPERM;
        if (neuron_version_compare(&d->driver, &c->since) < 0 &&
            (c->needs_attach || version_is_known(&d->driver)))
                return -EOPNOTSUPP;
        if (!is_within_bounds(d, command, argument))
                return -ERANGE;
        if (command == NEURON_DMA_ENG_GET_STATE)
                d->n_queues = 0;
        r = ioctl(d->fd, (unsigned long)command, argument);
        if (r != 0)
                return r < 0 ? -errno : r;
        if (command == NEURON_DMA_ENG_GET_STATE)
                note_engine(d, argument);
        return 0;
}
