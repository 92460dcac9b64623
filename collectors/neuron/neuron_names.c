/* The names of Neuron devices, neuron0 … neuron63, as device nodes and directories of sysfs have
 * them. A name with a leading zero or a larger number names no device. Nothing here opens a
 * device. */
#include "collectors/neuron/neuron_names.h"

#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"

int neuron_names_number(const char *name) {
        uint64_t n;
        bool is_canonical = strncmp(name, "neuron", 6) == 0 && strlen(name) < sizeof "neuron63" &&
                            (name[6] != '0' || name[7] == '\0');
        return is_canonical && parse_u64_range(name + 6, 0, NEURON_DEVICES_MAX - 1, &n) == 0
                       ? (int)n
                       : -1;
}

int neuron_names_list(const char *directory, bool of_directories, NeuronNames *ret) {
        bool is_there[NEURON_DEVICES_MAX] = { 0 };
        _cleanup_closedir_ DIR *dir = opendir(directory);
        const struct dirent *entry;
        if (!dir)
                return -errno;
        while ((entry = readdir(dir))) {
                int number = neuron_names_number(entry->d_name);
                bool may_be_one =
                        entry->d_type == DT_UNKNOWN || (entry->d_type == DT_DIR) == of_directories;
                if (number >= 0 && may_be_one)
                        is_there[number] = true;
        }
        *ret = (NeuronNames){ 0 };
        for (unsigned i = 0; i < NEURON_DEVICES_MAX; i++)
                if (is_there[i])
                        (void)snprintf(ret->items[ret->n++], sizeof ret->items[0], "neuron%u", i);
        return 0;
}
