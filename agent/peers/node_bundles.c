/* The list of a node's bundles of a failure, bounded. Who fills it is agent/failures for this
 * node's own record, and record.c from what other nodes have written. */
#include "agent/peers/node_bundles.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"

void node_bundles_done(NodeBundles *b) {
        for (size_t i = 0; i < b->n; i++)
                free(b->items[i].object);
        free(b->items);
        *b = (NodeBundles){ 0 };
}

bool node_bundles_contain(const NodeBundles *b, const char *id) {
        for (size_t i = 0; i < b->n; i++)
                if (strcmp(b->items[i].id, id) == 0)
                        return true;
        return false;
}

int node_bundles_add(NodeBundles *b, const char *id, BundleState state, const char *object) {
        char *copy = NULL;
        if (node_bundles_contain(b, id))
                return 0;
        if (b->n == NODE_BUNDLES_MAX) {
                b->n_left_out++;
                return 0;
        }
        if (object && strlen(object) <= NODE_BUNDLE_OBJECT_MAX && !(copy = strdup(object)))
                return -ENOMEM;
        if (array_grow(&b->items, b->n, sizeof *b->items) < 0) {
                free(copy);
                return -ENOMEM;
        }
        NodeBundle *added = &b->items[b->n++];
        *added = (NodeBundle){ .state = state, .object = copy };
        (void)snprintf(added->id, sizeof added->id, "%s", id);
        return 0;
}

void node_bundles_leave_out(NodeBundles *b) {
        uint64_t n = b->n_left_out + b->n;
        node_bundles_done(b);
        b->n_left_out = n;
}
