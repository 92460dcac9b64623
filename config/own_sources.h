/* Names of the sources that nobody configures: the agent ships by them what it has made itself. */
#pragma once

#define INCIDENTS_SOURCE "incidents" /* snapshots that are about no dump */
#define CONTAINERS_SOURCE_PREFIX                                                                   \
        "containers-" /* dumps out of containers; the name of the source that they belong to follows */
