/* Opens Neuron devices and sends them commands. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct NeuronVersion {
        unsigned part[3]; /* 2.30.2.0 is 2, 30, 2; zero: not known */
} NeuronVersion;

/** @return whether text begins with N.N.N; then *ret has it */
bool neuron_version_parse(const char *text, NeuronVersion *ret);
/** @return < 0, 0, > 0: a is older, the same, newer */
int neuron_version_compare(const NeuronVersion *a, const NeuronVersion *b);

typedef struct NeuronDevice {
        int fd; /* -1: closed */
        NeuronVersion driver;
} NeuronDevice;

/** Opens a device O_WRONLY, which takes none of its process slots. d->driver stays.
 * @return 0, -ELOOP: a symlink, -EINVAL: no device, -errno */
int neuron_ioctl_open(NeuronDevice *d, const char *directory, const char *name);
void neuron_ioctl_close(NeuronDevice *d);

/** Sends a command of the table in neuron_ioctl.c. @param argument  its structure of neuron_abi.h
 * @return 0; -EPERM: the command is not in the table, -EOPNOTSUPP: this driver does not have it;
 * neither was sent; -errno; > 0: the driver's, a failure: before 2.29, how much was not copied */
int neuron_ioctl_send(NeuronDevice *d, uint32_t command, void *argument);

/** Explains a result of neuron_ioctl_open() or neuron_ioctl_send() to people; -ECANCELED: the
 * device was not opened, because opening it could harm. */
void neuron_ioctl_error(char *text, size_t size, int r);
