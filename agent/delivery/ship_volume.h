/* A delivery to a volume: plan, object, proof, manifest, blocking from end to end in the volume's own worker. */
#pragma once

#include "agent/delivery/ship.h"
#include "uploaders/volume/volume.h"

typedef struct ShipVolumeOrder {  /* borrowed */
        Volume *volume;           /* must outlive the job */
        const char *root;         /* of the volume, for messages; copied */
        uint64_t size_hint_bytes; /* so much at least must fit, 0 = unknown */
} ShipVolumeOrder;

/** A job for the volume's worker; its on_done is called when it is back on the loop. @return 0, -ENOMEM */
int ship_volume_new(ShipJob **ret, const ShipOrder *order, const ShipVolumeOrder *volume);
ShipJob *ship_volume_free(ShipJob *s);
