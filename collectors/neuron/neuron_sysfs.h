/* The devices by their names, neuron0 … neuron63. No library: the hook uses it, too. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { NEURON_DEVICES_MAX = 64 };

typedef struct NeuronNames { /* in the order of their numbers; zero = none */
        char items[NEURON_DEVICES_MAX][sizeof "neuron63"];
        size_t n;
} NeuronNames;

/** @return the number of the device that has this name, -1: none has */
int neuron_number(const char *name);

/** The devices that have an entry in a directory. @param of_directories  whether theirs is one, too
 * @return 0, -errno */
int neuron_list(const char *directory, bool of_directories, NeuronNames *ret);
