/* The devices by their names, neuron0 … neuron63. No library: the hook uses it, too. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { NEURON_DEVICES_MAX = 64 };

/** Names in the order of their numbers. Zero: none. */
typedef struct NeuronNames {
        char items[NEURON_DEVICES_MAX][sizeof "neuron63"];
        size_t n;
} NeuronNames;

/** @return the number of the device that has this name; -1: it is no name of a device */
int neuron_names_number(const char *name);

/** Lists the devices that have an entry in a directory. @param of_directories  whether their
 * entries are directories; otherwise they are not
 * @return 0, -errno */
int neuron_names_list(const char *directory, bool of_directories, NeuronNames *ret);
