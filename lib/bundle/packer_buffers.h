/* The parts' memory: mapped once and used again, since fresh pages cost more than the bytes that go into them. Private to the
 * packer. A part may come back from any thread, also when the packer is gone. */
#pragma once

#include "lib/bundle/packer.h"

/** @param bytes  of each buffer */
int packer_buffers_new(PackerBuffers **ret, uint64_t bytes);

/** Gives up the owner's hold: from now on buffers that come back are unmapped. Takes NULL, returns NULL. */
PackerBuffers *packer_buffers_release(PackerBuffers *b);

/** Gives memory to a part. @return 0 or -ENOMEM */
int packer_buffers_take(PackerBuffers *b, PackedPart *part);

/** Takes a part's memory back, if it has any. */
void packer_buffers_give(PackedPart *part);
