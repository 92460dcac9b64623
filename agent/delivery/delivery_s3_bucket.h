/* A bucket as a destination. Private to this folder. */
#pragma once

#include "agent/delivery/destination.h"

extern const DestinationType destination_s3_type;

/** @return the bucket's client; NULL and *ret_error (borrowed): its configuration cannot be used */
S3Client *delivery_s3_bucket_client(const Destination *d, const char **ret_error);
