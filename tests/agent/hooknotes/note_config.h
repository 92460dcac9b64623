/* What the tests of notes share: the user who sends one, and a configuration that it is checked
 * against. */
#pragma once

#include "config/config.h"

#define ME 4242u

static ConfigSource sources[] = {
        { .name = (char *)"cores", .path = (char *)"/var/cores", .kind = CONFIG_PROCESS_CORE },
        { .name = (char *)"dumps",
          .path = (char *)"/tmp/neuron-core-dump/dt-%d-cid-%c",
          .kind = CONFIG_NEURON_CORE_DUMP },
        { .name = (char *)"plain", .path = (char *)"/srv/plain", .kind = CONFIG_DIRECTORY },
};

static ConfigDestination destinations[] = {
        { .name = (char *)"fsx", .type = CONFIG_VOLUME, .path = (char *)"/fsx/%d-%c" },
        { .name = (char *)"archive",
          .type = CONFIG_S3,
          .bucket = (char *)"bucket",
          .prefix = (char *)"neuron/%d-%c" },
        { .name = (char *)"whole",
          .type = CONFIG_S3,
          .bucket = (char *)"all-mine",
          .prefix = (char *)"%d-%c" },
};

static Config config = {
        .sources = sources, .n_sources = 3, .destinations = destinations, .n_destinations = 3
};
