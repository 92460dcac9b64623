/* The one door to Neuron devices: nothing else opens one or sends it a command. It sends what stands in its table and nothing more, each only to drivers
 * that have it, in the mode of opening that it needs, and within bounds that the driver itself does not check (neuron-interfaces 3.4 and 3.9). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct NeuronVersion {
        unsigned part[3]; /* 2.30.2.0 is 2, 30, 2; all 0 = not known */
} NeuronVersion;

/** @return whether text begins with N.N.N; then *ret */
bool neuron_version_parse(const char *text, NeuronVersion *ret);
/** @return <0, 0, >0 */
int neuron_version_compare(const NeuronVersion *a, const NeuronVersion *b);

/** The first driver in which commands of an attached reader are known not to bring the machine down. */
extern const NeuronVersion neuron_version_attached;

typedef struct NeuronDevice {
        int fd;
        bool is_attached;
        NeuronVersion driver;
        uint32_t architecture; /* 2, 3, 4; 0 = not known: nothing that depends on it is sent */
        uint32_t engine,
                n_queues; /* of the engine asked last, as far as its queues may be asked; the door's own */
} NeuronDevice;

/** Opens a device. @param is_attached  O_RDONLY, which takes a process slot and may block while the device is reset; else O_WRONLY, which takes none
 * @param d  gets fd and is_attached; the others are the caller's and count already
 * @return 0, -EPERM when the driver is not known to bear an attached reader, -EINVAL when it is neither a device nor a regular file (which stands in for
 * one in tests), -errno of open(2) */
int neuron_open(NeuronDevice *d, const char *directory, const char *name, bool is_attached);
void neuron_close(NeuronDevice *d);

/** Sends one command. @param argument  its structure of neuron_abi.h
 * @return 0; -EPERM not in the table, or not for this mode of opening; -EOPNOTSUPP not in this driver yet; -ERANGE outside of the bounds – none of them was
 * sent; -errno; a positive number that the driver returned, which is a failure too: before 2.29 it says how much could not be copied */
int neuron_ioctl(NeuronDevice *d, uint32_t command, void *argument);

/** Bounds of the architecture; 0 for one that is not known. */
uint32_t neuron_cores(uint32_t architecture);
uint32_t neuron_dma_engines(uint32_t architecture);
