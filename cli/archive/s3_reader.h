/* A range of an object in S3 as a ByteSource: by pieces, the next ones already on their way when it is read in order. */
#pragma once

#include "cli/archive/object_store.h"
#include "cli/archive/s3_session.h"

/** @param store  gets the sentences of failures; borrowed, as is the session @return 0, -ENOMEM */
int s3_reader_new(ObjectReader **ret, ObjectStore *store, S3Session *session,
                  const ObjectRange *range);
