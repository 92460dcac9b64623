/* The bundles that one node has of a failure, and where each lies: dumps, their supplements, and
 * what the agent itself has made. A part of the node's record. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/neuron/record.h"

#define NODE_BUNDLES_MAX 256
#define NODE_BUNDLE_OBJECT_MAX 1100 /* bytes; the URL of an S3 object has 1,093 at most */

typedef struct NodeBundle {
        char id[BUNDLE_ID_SIZE]; /* its kind is what this begins with */
        BundleState state;
        char *object; /* URL or path, as path_escape() spells it; NULL: no destination has it */
} NodeBundle;

typedef struct NodeBundles { /* all zero = none */
        NodeBundle *items;   /* each once */
        size_t n;
        uint64_t n_left_out; /* beyond NODE_BUNDLES_MAX, or what a reader takes */
} NodeBundles;

void node_bundles_done(NodeBundles *b);
bool node_bundles_contain(const NodeBundles *b, const char *id);
/** Adds a bundle unless it is there; beyond the limit it is counted.
 * @param object  copied; NULL, or longer than NODE_BUNDLE_OBJECT_MAX: not known
 * @return 0, -ENOMEM */
int node_bundles_add(NodeBundles *b, const char *id, BundleState state, const char *object);
/** Removes all bundles, which are counted as left out. */
void node_bundles_leave_out(NodeBundles *b);
