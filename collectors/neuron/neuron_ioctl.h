/* The only file that opens Neuron devices or sends them commands. It sends what stands in its table
 * and nothing more, each only to drivers that have it, and to devices that are open O_WRONLY only.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct NeuronVersion {
        unsigned part[3]; /* 2.30.2.0 is 2, 30, 2; all 0 = not known */
} NeuronVersion;

/** @return whether text begins with N.N.N; then *ret */
bool neuron_version_parse(const char *text, NeuronVersion *ret);
/** @return <0, 0, >0 */
int neuron_version_compare(const NeuronVersion *a, const NeuronVersion *b);

typedef struct NeuronDevice {
        int fd;
        NeuronVersion driver;
} NeuronDevice;

/** Opens a device O_WRONLY, which takes none of its process slots.
 * @param d  gets fd; driver is the caller's and counts already
 * @return 0, -EINVAL when it is neither a device nor a regular file (which stands in for one in
 * tests), -errno of open(2) */
int neuron_open(NeuronDevice *d, const char *directory, const char *name);
void neuron_close(NeuronDevice *d);

/** Sends one command. @param argument  its structure of neuron_abi.h
 * @return 0; -EPERM not in the table; -EOPNOTSUPP not in this driver yet: neither was sent; -errno;
 * a positive number that the driver returned, which is a failure too: before 2.29 it says how much
 * could not be copied */
int neuron_ioctl(NeuronDevice *d, uint32_t command, void *argument);

/** Describes a failure. @param r  as neuron_open() and neuron_ioctl() return it, not 0 */
void neuron_ioctl_error(char *text, size_t size, int r);
