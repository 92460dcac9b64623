/* A delivery to a bucket: the operations of DestinationType that are about one delivery. Private to
 * this folder. */
#pragma once

#include "agent/delivery/destination.h"

typedef struct DeliveryS3Options { /* borrowed */
        Destination *at;
        S3Client *client;
        const Bundle *bundle;
        const char *directory; /* below the bucket */
} DeliveryS3Options;

/** @return 0 and *ret; -ENOMEM */
int delivery_s3_new(Delivery **ret, const DeliveryS3Options *o);
Delivery *delivery_s3_free(Delivery *d);
int delivery_s3_start(Destination *d, Delivery *job);
void delivery_s3_abort(Delivery *d);
void delivery_s3_wind_down(Delivery *d);
/** Releases what is on the loop: the worker hangs, and keeps the rest. */
void delivery_s3_stop(Delivery *d);

/* Of the destination's running delivery. */
uint64_t delivery_s3_refresh(Destination *d);
bool delivery_s3_awaits_store(const Destination *d, uint64_t *ret_since_usec);
